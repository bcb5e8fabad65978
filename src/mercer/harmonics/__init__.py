"""Harmonic analysis on spheres of any dimension: Gegenbauer polynomials, Funk-Hecke coefficients, spherical harmonics."""

from mercer.harmonics.basis import SphericalHarmonics
from mercer.harmonics.funk_hecke import funk_hecke
from mercer.harmonics.gegenbauer import gegenbauer, num_harmonics, zonal_series
from mercer.harmonics.sphere import from_latlon

__all__ = ["SphericalHarmonics", "gegenbauer", "num_harmonics", "funk_hecke", "zonal_series", "from_latlon"]
