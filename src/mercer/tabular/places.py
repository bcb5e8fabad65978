"""Places: a column of latitudes and one of longitudes, in degrees, as points on the globe.

A place becomes its unit vector, three numbers: two in the plane of the equator, and one towards the north. Kernels of these
know neither a date line nor poles. With one lengthscale for the three a stationary kernel is one on the sphere
(`mercer.kernels.SphericalMatern52`); with one for the plane and another for the north it still does not change when the globe
turns around its axis (Jones, 1963). In a small region both are kernels on a flat map.

There latitude and longitude as two numbers have the smaller error (`benchmarks/README.md`, fields on the globe), so that a table
has places only where numbers could go wrong, which `needs_globe` says.
"""

import re
from collections import defaultdict
from collections.abc import Collection
from typing import Literal

import equinox as eqx
import numpy as np
from jaxtyping import Float

from mercer.harmonics.sphere import from_latlon
from mercer.io.tables import Column, Table, TableError
from mercer.tabular.encoders import Encoder, count_of
from mercer.tabular.training import double_precision

Places = Literal["auto", "globe", "flat"]  # pairs are places where numbers could go wrong, always, or never
_NAMES = {"latitude": ("lat", "latitude"), "longitude": ("lon", "lng", "long", "longitude")}
_RANGES = {"latitude": (-90.0, 90.0), "longitude": (-180.0, 360.0)}
_WIDEST = 180.0  # degrees of longitude: no two meridians are further apart, so that a larger difference is no distance
_POLAR = 75.0  # degrees of latitude: a degree of longitude there is a quarter of one at the equator, and 0 at the pole
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")  # of names such as pickup_latitude, startLng, LAT 1


class Place(Encoder):
    """A latitude and a longitude in degrees: the unit vector; and 1 where one of the two is missing, 0 elsewhere.

    What is missing becomes `fill`, the mean of the unit vectors.
    """

    latitude: str = eqx.field(static=True)
    longitude: str = eqx.field(static=True)
    fill: tuple[float, float, float] = eqx.field(static=True)
    indicator: bool = eqx.field(static=True)  # whether its absence is a feature

    @classmethod
    def describe(cls, table: Table, latitude: str, longitude: str, notes: list[str]) -> "Place":
        """The encoder of two columns; and notes."""
        vectors = _vectors(table, latitude, longitude)
        missing = np.isnan(vectors[:, 0])
        x, y, z = np.nanmean(vectors, axis=0).tolist() if not missing.all() else (0.0, 0.0, 0.0)
        made = cls(latitude, longitude, (x, y, z), bool(missing.any()))
        if made.indicator:
            filled = "filled with the mean place, with an indicator column"
            notes.append(f"{made.title}: {count_of(missing.sum(), missing)} missing; {filled}")
        return made

    @property
    def title(self) -> str:
        return f"place ({self.latitude}, {self.longitude})"

    @property
    def columns(self) -> tuple[str, ...]:
        return self.latitude, self.longitude

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(f"{self.title}: {axis}" for axis in "xyz") + (f"{self.title} is missing",) * self.indicator

    def encode(self, table, out, notes):
        vectors = _vectors(table, self.latitude, self.longitude)
        missing = np.isnan(vectors[:, 0])
        if missing.any() and not self.indicator:
            said = f"{count_of(missing.sum(), missing)} missing, and none was in training; filled with the mean there"
            notes.append(f"{self.title}: {said}")
        out[:, :3] = np.where(missing[:, None], self.fill, vectors)
        if self.indicator:
            out[:, 3] = missing


def pairs_of_coordinates(table: Table, exclude: Collection[str], notes: list[str]) -> list[tuple[str, str]]:
    """The pairs of columns (latitude, longitude) of a table, by their names and values; and notes on those that only look alike.

    The names of the two are the same but for one word, lat or latitude in the first, and lon, lng, long or longitude in the
    second. The values are numbers, not all the same, and lie from -90 to 90 and from -180 to 360.
    """
    found: dict[tuple[str, ...], dict[str, list[str]]] = defaultdict(lambda: {role: [] for role in _NAMES})
    for name in table.names:
        words = [word.lower() for word in _WORD.findall(name)]
        roles = [(role, at) for role, names in _NAMES.items() for at, word in enumerate(words) if word in names]
        if len(roles) == 1 and name not in exclude:
            role, at = roles[0]
            found[*words[:at], "*", *words[at + 1 :]][role].append(name)
    pairs = []
    for columns in found.values():
        match columns["latitude"], columns["longitude"]:
            case [latitude], [longitude]:
                degrees = {role: table.column(name) for role, name in zip(_NAMES, (latitude, longitude), strict=True)}
                if not all(_varies(column) for column in degrees.values()):
                    continue
                wrong = [said for role, column in degrees.items() if (said := _beyond(table, column, role))]
                if wrong:
                    names = f"columns {latitude!r} and {longitude!r}"
                    notes.append(f"{names} are taken as numbers, not as a place: {wrong[0]}")
                else:
                    pairs.append((latitude, longitude))
            case [_, *_] as latitudes, [_, *_] as longitudes:
                several = " and ".join(map(repr, latitudes + longitudes))
                notes.append(f"columns {several} are taken as numbers: which of them belong together is not clear")
    return pairs


def needs_globe(table: Table, latitude: str, longitude: str) -> bool:
    """Whether two columns of degrees have to be a place, as their numbers could be far apart where the places are near.

    That is so if the longitudes, as they are written, span more than 180 degrees, or if any latitude is beyond 75 north or south.
    """
    columns = [table.column(name).numbers() for name in (latitude, longitude)]
    north, east = (degrees[np.isfinite(degrees)] for degrees in columns)
    return bool((np.abs(north) > _POLAR).any() or (len(east) and np.ptp(east) > _WIDEST))


def _varies(column: Column) -> bool:
    """Whether a column holds numbers that are not all the same."""
    if column.kind != "number":
        return False
    present = column.values[np.isfinite(column.values)]
    return bool(len(present) and (present != present[0]).any())


def _beyond(table: Table, column: Column, role: str) -> str | None:
    """What is wrong with the degrees in a column of a table, if anything is."""
    degrees, (low, high) = column.numbers(), _RANGES[role]
    wrong = np.flatnonzero(np.isfinite(degrees) & ~((low <= degrees) & (degrees <= high)))
    if not len(wrong):
        return None
    said = f"column {column.name!r} holds {degrees[wrong[0]]:.6g} in row {table.row_number(int(wrong[0]))}"
    return f"{said}, and {role}s are from {low:g} to {high:g} degrees"


def _vectors(table: Table, latitude: str, longitude: str) -> Float[np.ndarray, "N 3"]:
    """The unit vector of each row, NaN where one of the two is missing or infinite."""
    columns = [table.column(name) for name in (latitude, longitude)]
    for column, role in zip(columns, _NAMES, strict=True):
        if (wrong := _beyond(table, column, role)) is not None:
            raise TableError(f"{table.source}: {wrong}; correct it")
    degrees = np.stack([column.numbers() for column in columns])
    present = np.isfinite(degrees).all(axis=0)
    vectors = np.full((len(present), 3), np.nan)
    with double_precision():
        vectors[present] = np.asarray(from_latlon(*degrees[:, present]))
    return vectors
