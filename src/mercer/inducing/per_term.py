"""Inducing variables of the terms of a sum of kernels, each term seen by itself."""

from collections.abc import Sequence

from mercer.inducing.base import InducingVariables


class PerTerm(InducingVariables):
    """For f = f_1 + f_2 + ..., with the kernel k_1 + k_2 + ..., variables of each f_i: as many sets as there are terms.

    Terms of a different nature (a function of patches and one of the whole image) get the variables that suit them. As the
    terms are independent, so are their variables a priori, and `Kuu` is block diagonal.
    """

    parts: tuple[InducingVariables, ...]

    def __init__(self, parts: Sequence[InducingVariables]):
        self.parts = tuple(parts)

    def __check_init__(self):
        if not self.parts or not all(isinstance(part, InducingVariables) for part in self.parts):
            kinds = [type(part).__name__ for part in self.parts]
            raise ValueError(f"PerTerm expects inducing variables for each term, at least one, got {kinds}")

    @property
    def num(self):
        return sum(part.num for part in self.parts)
