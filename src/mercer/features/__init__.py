"""Feature maps phi with parameters of their own: what the functions w . phi(x) of an inference network are made of."""

from mercer.features.base import Features
from mercer.features.combinations import Composed, Separate
from mercer.features.fourier import RandomFourier
from mercer.features.modules import Basis, Tangent

__all__ = ["Features", "RandomFourier", "Basis", "Tangent", "Composed", "Separate"]
