"""The model of a table: what `mercer fit` makes and saves, from a table with a target to predictions for tables without it.

Some rows are held out at random. The columns are described, and the model is trained, on the others; those held out say how
good it is, beside baselines. At last the model is conditioned on all rows, with what it has learned held still.
"""

import dataclasses
import hashlib
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, get_args

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

import mercer
from mercer.deprecation import warn
from mercer.io import FormatError
from mercer.io.tables import Table, TableError, read_table
from mercer.parameters import Module, constant
from mercer.tabular.classification import Classification, classification
from mercer.tabular.columns import Columns
from mercer.tabular.counts import Counts, counts
from mercer.tabular.evaluation import Evaluation, baselines
from mercer.tabular.places import Places, needs_globe, pairs_of_coordinates
from mercer.tabular.predictors import Predictor
from mercer.tabular.regression import Regression, regression
from mercer.tabular.targets import Target, Task, detect
from mercer.tabular.training import DEFAULT, Settings, double_precision

_SLICE = 100_000  # rows that are predicted at a time
_POINTS = 2000  # rows that are kept for a picture
_MIN_HELD = 30  # rows below which none is held out
_MAX_HELD = 10_000
_MAX_EXACT = 20_000  # rows beyond which an exact model fills the memory


class Report(Module):
    """How a model came about, and how good it was on the rows held out.

    `points` are pairs (x, y) of up to 2000 rows where there is one feature only.
    """

    source: str = eqx.field(static=True)
    num_rows: int = eqx.field(static=True)
    method: str = eqx.field(static=True)
    notes: tuple[str, ...] = eqx.field(static=True)
    seconds: float = eqx.field(static=True)
    version: str = eqx.field(static=True)
    held_out: Evaluation | None
    points: Float[Array, "K 2"] = constant()


class TableModel(Module):
    """A trained model, from the columns of a table to predictions in the units of its target."""

    columns: Columns
    target: Target
    predictor: Predictor
    report: Report

    def __check_init__(self):
        task, num_classes, num_features = self.target.task, len(self.target.classes), len(self.columns.features)
        kind, num_inputs = _PREDICTORS[task], len(self.predictor.inputs.centre)
        if not isinstance(self.predictor, kind) or num_features != num_inputs:
            made = f"a {type(self.predictor).__name__} of {num_inputs} inputs"
            raise ValueError(f"{task} from {num_features} features expects a {kind.__name__} of them, got {made}")
        shown = self.report.held_out
        width = num_classes or 2 if shown is None else shown.predicted.shape[1]
        if (num_classes > 1) != (kind is Classification) or width != (num_classes or 2):
            raise ValueError(f"{task} of {num_classes} classes expects predictions of them, got {width} columns")

    @classmethod
    def fit(
        cls,
        table: Any,
        target: str,
        *,
        task: Task | None = None,
        exclude: Collection[str] = (),
        places: Places = "auto",
        holdout: float = 0.1,
        settings: Settings = DEFAULT,
        flat: bool | None = None,
    ) -> "TableModel":
        """The model that predicts the column `target` from the others, but for those in `exclude`.

        Columns of latitude and longitude are a place on the globe where two numbers could go wrong (`needs_globe`), and two
        numbers like others elsewhere. With `places="globe"` they always are a place, with `places="flat"` never. `flat` is the
        old name: True is `places="flat"`, and False `places="globe"`.
        """
        if flat is not None:
            instead: Places = "flat" if flat else "globe"
            warn(f'TableModel.fit: flat={flat} is called places="{instead}" now')
            if places not in ("auto", instead):
                raise ValueError(f"flat={flat} and places={places!r} say different things; leave out flat")
            places = instead
        problem = Problem.of(
            table, target, task=task, exclude=exclude, places=places, holdout=holdout, settings=settings
        )
        return problem.solve()

    def predict(
        self, table: Any, level: float = 0.9, notes: list[str] | None = None
    ) -> dict[str, Shaped[np.ndarray, " N"]]:
        """Columns of predictions: mean, std, lower and upper; or prediction, and p(label) for each class.

        Of the numbers, a share `level` should lie between lower and upper. What is new in the table is said in `notes`.
        """
        slices = list(self.predict_slices(table, level, notes))
        return {name: np.concatenate([part[name] for part in slices]) for name in slices[0]}

    def predict_slices(
        self, table: Any, level: float = 0.9, notes: list[str] | None = None
    ) -> Iterator[dict[str, Shaped[np.ndarray, " n"]]]:
        """As `predict`, some rows after the other, so that memory does not grow with the table."""
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must be between 0 and 1, got {level}")
        table, said, predictor = _as_table(table), set(), self.predictor.cached()
        for start in range(0, len(table), _SLICE):
            fresh: list[str] = []
            X = self.columns.encode(table.rows(slice(start, start + _SLICE)), notes=fresh)
            for note in fresh if notes is not None else ():
                column = note.partition(":")[0]
                if column not in said:
                    said.add(column)
                    notes.append(f"from row {start + 1} on, {note}" if len(table) > _SLICE else note)  # type: ignore[union-attr]
            yield predictor.predictive(X).columns(self.target, level)

    def evaluate(self, table: Any) -> Evaluation:
        """The scores on the rows of a table that holds the target; of more than 10,000, on a random sample."""
        table = _as_table(table)
        y, keep = self.target.encode(table.column(self.target.column))
        if not len(y):
            raise TableError(f"{table.source}: column {self.target.column!r} is empty, so that nothing can be scored")
        some = np.random.default_rng(0).permutation(len(y))[:_MAX_HELD]
        X = self.columns.encode(table.rows(np.flatnonzero(keep)[some]))
        return Evaluation.of(self.predictor.cached(), {}, X, y[some])

    def cached(self) -> "TableModel":
        """The same model with what prediction needs worked out once, for several calls of `predict` and `evaluate`."""
        return eqx.tree_at(lambda own: own.predictor, self, self.predictor.cached())


_PREDICTORS: dict[str, Any] = {
    "regression": Regression,
    "counts": Counts,
    "binary": Classification,
    "multiclass": Classification,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A table made ready to be learned from: numbers, the rows for training before those held out.

    `flat_pairs` are columns of latitude and longitude that are numbers, as a flat map suits them.
    """

    table: Table
    columns: Columns
    target: Target
    X: Float[np.ndarray, "N D"]
    y: Float[np.ndarray, " N"]
    num_held: int
    settings: Settings
    notes: tuple[str, ...]
    flat_pairs: tuple[tuple[str, str], ...]

    @classmethod
    def of(
        cls,
        table: Any,
        target: str,
        *,
        task: Task | None = None,
        exclude: Collection[str] = (),
        places: Places = "auto",
        holdout: float = 0.1,
        settings: Settings = DEFAULT,
    ) -> "Problem":
        """The problem of predicting the column `target`; the arguments are those of `TableModel.fit`."""
        if places not in get_args(Places):
            raise ValueError(f"places expects one of {get_args(Places)}, got {places!r}")
        table = _as_table(table)
        if not 0.0 <= holdout <= 0.5:
            raise ValueError(f"holdout must be between 0 and 0.5, got {holdout}")
        for name in (target, *exclude):
            if name not in table.names or name == target:
                table.column(name)  # which says what is wrong
        if target in exclude:
            raise TableError(f"the target {target!r} is among the columns that are excluded; leave out one of the two")
        if target in table.duplicated:
            raise TableError(
                f"{table.source} has more than one column {target!r}, the target; rename all but one of them"
            )
        question = detect(table.column(target), task)
        y, keep = question.encode(table.column(target))
        order, num_held = _order(y, bool(question.classes), holdout, settings)
        rows = np.flatnonzero(keep)[order]
        notes, excluded = list(table.notes), {target, *exclude}
        # The whole table decides, and not the rows for training, so that the choice does not depend on chance.
        found = [] if places == "flat" else pairs_of_coordinates(table, excluded, notes)
        pairs = [pair for pair in found if places == "globe" or needs_globe(table, *pair)]
        flat_pairs = tuple(pair for pair in found if pair not in pairs)
        columns = Columns.describe(table.rows(np.sort(rows[: len(rows) - num_held])), excluded, pairs)
        notes += columns.notes
        if len(rows) < len(table):
            notes.append(f"{len(table) - len(rows)} rows are left out, as {target!r} is missing there")
        # Exact on the rows for training is exact on all: the model that is scored is of the kind that is kept.
        exact = question.task == "regression" and len(rows) - num_held <= settings.max_exact
        if exact and len(rows) > _MAX_EXACT:
            raise TableError(f"{table.source} has too many rows ({len(rows)}) for an exact model; lower max_exact")
        settings = dataclasses.replace(
            settings, max_exact=len(rows) if exact else 0, places=tuple(columns.places.values())
        )
        X = columns.encode(table.rows(rows))
        return cls(table, columns, question, X, y[order], num_held, settings, tuple(notes), flat_pairs)

    @property
    def method(self) -> str:
        """How the model is inferred, and why, in words."""
        if self.target.task != "regression":
            kind = "counts" if self.target.task == "counts" else "classes"
            return f"variational inference with inducing points, as {self.target.column!r} holds {kind}"
        if self.settings.max_exact:
            return f"exact inference, as {len(self.y)} rows are few enough"
        return (
            f"sparse inference with up to {self.settings.num_inducing} inducing points, as there are {len(self.y)} rows"
        )

    @property
    def held_out(self) -> str:
        """Which rows are held out, in words."""
        if not self.num_held:
            return "no row is held out, so that there are no scores"
        few = ": few, so that scores are uncertain" if self.num_held < 20 else ""
        return f"{self.num_held} rows, drawn at random, are held out for the scores{few}"

    def solve(self, announce: Callable[[str], None] = lambda said: None) -> TableModel:
        """The trained model. `announce` is told what is being done, but for the steps of training."""
        with double_precision():
            return self._solve(announce)

    def _solve(self, announce):
        begin, task, num_classes = time.perf_counter(), self.target.task, len(self.target.classes)
        num_train = len(self.y) - self.num_held
        X, y = self.X[:num_train], self.y[:num_train]
        announce("learning")
        predictor = self._learned(lambda: _learn(task, X, y, num_classes, self.settings), announce)
        held_out = None
        if self.num_held:
            announce(f"predicting {self.num_held} rows held out")
            others = baselines(task, X, y, num_classes)
            held_out = Evaluation.of(predictor.cached(), others, self.X[num_train:], self.y[num_train:])
            announce("conditioning on all rows")
            predictor = predictor.condition(self.X, _shaped(task, self.y), None, self.settings)
        # An exact posterior is kept with its factor, N^2 numbers, which would take N^3 operations after each loading.
        predictor = predictor.cached() if predictor.exact else predictor
        pairs = np.stack([self.X[:_POINTS, 0], self.y[:_POINTS]], axis=1)
        report = Report(
            self.table.source,
            len(self.y),
            self.method,
            self.notes,
            time.perf_counter() - begin,
            mercer.__version__,
            held_out,
            jnp.asarray(pairs if self.X.shape[1] == 1 else pairs[:0]),
        )
        return TableModel(self.columns, self.target, predictor, report)

    def _learned(self, learn: Callable[[], Predictor], announce: Callable[[str], None]) -> Predictor:
        """What `learn` gives, or gave in a run that was cut off later."""
        if self.settings.checkpoint is None:
            return learn()
        file, identity = Path(f"{self.settings.checkpoint}.learned"), self._identity()
        try:
            found, predictor = mercer.load(file)
            if found == identity and isinstance(predictor, Predictor):
                announce("going on after training, which an earlier run has finished")
                return predictor
        except (FileNotFoundError, FormatError, TypeError, ValueError):
            pass
        predictor = learn()
        mercer.save(file, (identity, predictor))
        return predictor

    def _identity(self) -> str:
        """A digest of what the result of training depends on."""
        settings = dataclasses.replace(self.settings, checkpoint=None, watch=None)
        digest = hashlib.blake2b(
            f"{settings} {self.num_held} {self.target.task} {self.X.shape}".encode(), digest_size=16
        )
        for array in (self.X, self.y):
            digest.update(np.ascontiguousarray(array).ravel().data)
        return digest.hexdigest()


def _as_table(table: Any) -> Table:
    return table if isinstance(table, Table) else read_table(table)


def _order(y: np.ndarray, classes: bool, holdout: float, settings: Settings) -> tuple[np.ndarray, int]:
    """The rows in random order, and how many of the last are held out: at least 20 or a fifth. One of each class is first."""
    order = settings.generator(0).permutation(len(y))
    if classes:
        first = np.unique(y[order], return_index=True)[1]
        order = np.concatenate([order[first], np.delete(order, first)])
    if len(y) < _MIN_HELD or not holdout:
        return order, 0
    return order, min(max(round(holdout * len(y)), min(20, len(y) // 5)), _MAX_HELD)


def _shaped(task: Task, y: np.ndarray) -> np.ndarray:
    """Targets as a predictor takes them: numbers are a column."""
    return y[:, None] if task == "regression" else y


def _learn(task: Task, X: np.ndarray, y: np.ndarray, num_classes: int, settings: Settings) -> Predictor:
    if task == "regression":
        return regression(X, _shaped(task, y), None, settings)
    return counts(X, y, None, settings) if task == "counts" else classification(X, y, num_classes, None, settings)
