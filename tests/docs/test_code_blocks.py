"""Every Python block of README.md and of the documentation runs, the blocks of one file in order and in one namespace."""

import importlib.util
import re
import sys
import types
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(path):
    """The Python blocks of a file, each with the number of the line before its first."""
    text = path.read_text(encoding="utf-8")
    return [(text.count("\n", 0, match.start(1)), match.group(1)) for match in BLOCK.finditer(text)]


FILES = [path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if blocks(path)]


# Five seconds or more each.
LONG = ("gvi.md", "images.md", "interdomain.md", "multiple-outputs.md", "scikit-learn.md", "networks.md", "deep.md")
LONG += (
    "classification.md",
    "extending.md",
    "sparse-regression.md",
    "index.md",
    "sphere.md",
    "activated.md",
    "sphere-data.md",
)
LONG += ("latent-inputs.md", "conditional-densities.md", "uncertain-inputs.md", "experiments.md")
# An extra that the tests do without.
NEEDS = {"other-spaces.md": "geometric_kernels"}
CASES = [pytest.param(path, marks=[pytest.mark.slow] if path.name in LONG else []) for path in FILES]


@pytest.mark.parametrize("path", CASES, ids=[str(path.relative_to(ROOT)) for path in FILES])
def test_the_blocks_run(path, tmp_path, monkeypatch):
    if path.name in NEEDS and importlib.util.find_spec(NEEDS[path.name]) is None:
        pytest.skip(f"{NEEDS[path.name]} is not installed")
    monkeypatch.chdir(tmp_path)  # for the files that they write
    module = types.ModuleType(f"blocks_of_{path.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    double = any("jax_enable_x64" in source for _, source in blocks(path))
    with jax.enable_x64(double):  # as a reader who runs the file in a fresh interpreter has it
        for lines_before, source in blocks(path):
            # With as many empty lines in front, a traceback names the line of the file.
            exec(compile("\n" * lines_before + source, str(path), "exec"), module.__dict__)


def test_there_are_blocks_to_run():
    assert ROOT / "README.md" in FILES
    assert len(FILES) > 5
