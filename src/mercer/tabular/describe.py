"""A model in words: what its kernel says of the function, which columns matter, how much noise there is."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import mercer.kernels as kernels
from mercer.tabular.table_model import TableModel
from mercer.tabular.training import double_precision

_WORDS: dict[type, str] = {
    kernels.RBF: "a function with derivatives of all orders (RBF)",
    kernels.Matern52: "a smooth function (Matérn 5/2)",
    kernels.Matern32: "a fairly smooth function (Matérn 3/2)",
    kernels.Matern12: "a rough function (Matérn 1/2)",
    kernels.RationalQuadratic: "a smooth function that varies on many scales (rational quadratic)",
    kernels.Additive: "a sum of functions of one column each (additive)",
    kernels.Periodic: "a function that repeats itself (periodic)",
    kernels.Cosine: "a wave (cosine)",
    kernels.Linear: "a linear function",
    kernels.Polynomial: "a polynomial",
    kernels.Constant: "a constant",
    kernels.White: "noise without memory (white)",
    kernels.Sum: "a sum of independent functions",
    kernels.Product: "a function whose kernel is a product",
}
_BLOCKS = "▁▂▃▄▅▆▇█"


def kernel_of(model: TableModel) -> kernels.Kernel:
    """The kernel of a model."""
    return model.predictor.posterior.prior.kernel


Labels = Mapping[tuple[int, ...], str]


def in_words(kernel: kernels.Kernel, num_columns: int, labels: Labels = MappingProxyType({})) -> list[str]:
    """A kernel, line by line, its parts indented below it; a part of a sum with its share of the variance.

    `labels` names some features together, by their numbers.
    """
    with double_precision():
        return list(_lines(kernel, np.ones((1, num_columns)), labels))


def labels(model: TableModel) -> Labels:
    """What the features are that the factors of a kernel with places see."""
    places = model.columns.places
    planes = {features[:2]: f"{title} in the plane of the equator" for title, features in places.items()}
    rest = sorted(set(range(len(model.columns.features))).difference(*planes))
    north = [f"{title} towards the north" for title in places]
    others = ["the other columns"] * (len(model.columns.encoders) > len(places))
    return planes | {tuple(rest): " and ".join(others + north)} if places else {}


def _lines(kernel: kernels.Kernel, x: np.ndarray, labels: Labels) -> Iterator[str]:
    """`x` is an input one standard deviation from the centre in every column, where variances are compared."""
    if isinstance(kernel, kernels.Scaled):
        yield from _lines(kernel.kernel, x, labels)
        return
    if isinstance(kernel, kernels.OnDimensions):
        first, *rest = _lines(kernel.kernel, x[:, kernel.dims], {})
        numbers = f"the features {', '.join(str(d + 1) for d in kernel.dims)}"
        yield f"{first} of {labels.get(kernel.dims, numbers)}"
        yield from rest
        return
    yield _WORDS.get(type(kernel), f"a {type(kernel).__name__} kernel") + _reach(kernel)
    parts = getattr(kernel, "kernels", ())
    variances = [float(part.diag(x)[0]) for part in parts]
    for part, variance in zip(parts, variances, strict=True):
        first, *rest = _lines(part, x, labels)
        share = f"{100.0 * variance / sum(variances):3.0f} %  " if isinstance(kernel, kernels.Sum) else ""
        yield f"  {share}{first}"
        yield from (f"  {' ' * len(share)}{line}" for line in rest)


def _reach(kernel: kernels.Kernel) -> str:
    if not isinstance(lengthscale := getattr(kernel, "lengthscale", None), Array):
        return ""
    low, high = float(jnp.min(lengthscale)), float(jnp.max(lengthscale))
    return f", lengthscale {low:.2g}" if low == high else f", lengthscales from {low:.2g} to {high:.2g}"


def lengthscales(kernel: kernels.Kernel, num_columns: int) -> dict[str, Float[np.ndarray, " D"]]:
    """The lengthscales of each part of a kernel that has them, one for each feature; NaN where a part does not see it.

    Parts of one name that see different features are in one row.
    """
    found: dict[str, np.ndarray] = {}
    for part, dims in _parts(kernel, num_columns):
        if isinstance(lengthscale := getattr(part, "lengthscale", None), Array):
            name = _WORDS.get(type(part), f"({type(part).__name__})").rpartition("(")[2].rstrip(")")
            known = [values for other, values in found.items() if other.partition(" #")[0] == name]
            if not known or not np.isnan(known[-1][list(dims)]).all():
                known.append(np.full(num_columns, np.nan))
                found[f"{name} #{len(known)}" if len(known) > 1 else name] = known[-1]
            known[-1][list(dims)] = np.asarray(lengthscale)
    return found


def shortest_lengthscales(model: TableModel) -> dict[str, dict[str, str]]:
    """For each part of the kernel and each column the shortest lengthscale of its features, in words.

    Those of a place are angles, to the east and to the north, as they are at the equator: a distance d in units of the radius
    is seen there under an angle of 2 arcsin(d / 2).
    """
    places, scale = model.columns.places, np.asarray(model.predictor.inputs.scale)

    def angle(values, d):
        distance = float(values[d] * scale[d])
        if np.isnan(distance):
            return "-"
        return f"{np.degrees(2.0 * np.arcsin(0.5 * distance)):.3g}°" if distance < 2.0 else ">180°"

    def said(title, values):
        if title in places:
            return " / ".join(angle(values, d) for d in places[title][1:])
        return f"{min(values[list(model.columns.groups[title])].tolist(), default=float('nan')):.3g}"

    scales = lengthscales(kernel_of(model), len(model.columns.features))
    return {part: {title: said(title, values) for title in model.columns.groups} for part, values in scales.items()}


def _parts(kernel: kernels.Kernel, num_columns: int) -> Iterable[tuple[kernels.Kernel, tuple[int, ...]]]:
    """The parts that are neither sums nor products, each with the features that it sees."""
    factors = [factor for term in kernel.terms(tuple(range(num_columns))) for factor in term.factors]
    return {(id(part), dims): (part, dims) for part, dims in factors}.values()


def relevance(kernel: kernels.Kernel, groups: Sequence[Sequence[int]], num_columns: int) -> Float[np.ndarray, " G"]:
    """How much the function should change when the features of a group move by one standard deviation, as a share of 1.

    The expected squared change, E (f(x + e) - f(x))^2 = k(x, x) + k(x + e, x + e) - 2 k(x, x + e), is taken at the centre of
    the data and divided by its sum over groups. A group that the function does not depend on has 0.
    """
    moved = np.zeros((len(groups), num_columns))
    for row, group in zip(moved, groups, strict=True):
        row[list(group)] = 1.0
    with double_precision():
        x, y = jnp.zeros((1, num_columns)), jnp.asarray(moved)
        change = np.asarray(kernel.diag(x) + kernel.diag(y) - 2.0 * kernel(x, y)[0])
    change = np.maximum(change, 0.0)
    return change / max(change.sum(), np.finfo(float).tiny)


def relevances(model: TableModel) -> dict[str, float]:
    """The relevance of each column, the most relevant first."""
    groups = model.columns.groups
    values = relevance(kernel_of(model), list(groups.values()), len(model.columns.features))
    return dict(sorted(zip(groups, values.tolist(), strict=True), key=lambda pair: -pair[1]))


def noise(model: TableModel) -> str:
    """What the likelihood says of an observation, given the function."""
    return model.predictor.noise_in_words(model.target.column)


def posterior(model: TableModel) -> str:
    """How the posterior is represented."""
    if model.predictor.exact:
        return f"exact, given {model.report.num_rows} rows"
    return f"{model.predictor.posterior.inducing.num} inducing points for {model.report.num_rows} rows"


def sparkline(values: Float[np.ndarray, " S"], width: int = 40) -> str:
    """Numbers as a row of small bars, at most `width`."""
    if not len(values):
        return ""
    shown = values[np.linspace(0, len(values) - 1, min(width, len(values))).round().astype(int)]
    low, high = np.nanmin(shown), np.nanmax(shown)
    heights = np.nan_to_num((shown - low) / (high - low or 1.0)) * (len(_BLOCKS) - 1)
    return "".join(_BLOCKS[round(float(height))] for height in heights)
