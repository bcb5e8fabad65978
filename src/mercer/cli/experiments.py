"""The commands `mercer run` and `mercer schema`, for experiments in YAML."""

import importlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from mercer.cli.commands import Quiet, app
from mercer.cli.console import ERR, OUT

Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="A module with classes and stages of your own; may be repeated."),
]
_NEEDED = "experiments need pydantic and pyyaml: pip install 'mercer[experiments]'"


@app.command(
    epilog="Try:\n\nmercer run curve.yaml\n\nmercer run curve.yaml seed=1 stages.posterior.steps=5000 --out runs"
)
def run(
    experiment: Annotated[Path, typer.Argument(metavar="EXPERIMENT", help="A YAML file.")],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY.PATH=VALUE]...", help="Changes to the file, such as seed=1.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where runs and their stages lie.")] = Path(
        "runs"
    ),
    imports: Imports = None,
    quiet: Quiet = False,
) -> None:
    """Run an experiment, or what is left of it, and print its scores.

    What it gave lies in a folder of its own. The same command goes on with a run that was cut off, and does nothing where the
    run is there already.
    """
    package = experiments(imports)
    outcome = package.run(
        package.Experiment.read(experiment, changes or ()),
        out,
        None if quiet else lambda line: ERR.print(line, highlight=False, markup=False),
    )
    if not quiet:
        ERR.print(
            f"{'written to' if outcome.done else 'it was there already:'} {outcome.folder}",
            highlight=False,
            markup=False,
        )
    for part, scores in outcome.scores.items():
        OUT.print(f"{part}: " + ", ".join(f"{name} {value:.6g}" for name, value in scores.items()), highlight=False)


@app.command()
def schema(
    sweep: Annotated[bool, typer.Option("--sweep", help="Of sweeps, in the place of experiments.")] = False,
    imports: Imports = None,
) -> None:
    """Print the JSON schema of experiments, or of sweeps, for completion in editors."""
    packages = experiments(imports)
    print(json.dumps(packages.sweep_json_schema() if sweep else packages.json_schema(), indent=1))


def experiments(imports: list[str] | None = None) -> Any:
    """The package, or an error that says what to install; with modules of the user imported."""
    try:
        import pydantic  # noqa: F401
        import yaml  # noqa: F401
    except ImportError as error:
        raise ImportError(_NEEDED) from error
    import mercer

    for module in imports or ():
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise mercer.experiments.ConfigurationError(f"--import {module}: {error}") from None
    return mercer.experiments
