"""Features of features: of what a module makes of the input, and those of several outputs side by side."""

from collections.abc import Sequence

import jax.numpy as jnp

from mercer import modules
from mercer.features.base import Features
from mercer.parameters import param, real


class Composed(Features):
    """phi(h(x)), h a module that takes a row [D] to the inputs of phi: deterministic layers below those with weights."""

    features: Features
    module: modules.Module = param(real)

    def __init__(self, module: modules.Module, features: Features):
        modules.check_module(module, "Composed")
        if not isinstance(features, Features):
            raise ValueError(f"Composed: features expects one of mercer.features, got {type(features).__name__}")
        self.module, self.features = module, features

    @property
    def num(self):
        return self.features.num

    @property
    def num_outputs(self):
        return self.features.num_outputs

    @property
    def joint(self):
        return self.features.joint

    @property
    def blocks(self):
        return self.features.blocks

    def _inner(self, X):
        return modules.of_rows(self.module, X, "Composed")

    def parameters(self):
        return self.features.parameters()

    def offset(self, X):
        return self.features.offset(self._inner(X))

    def values(self, X):
        return self.features.values(self._inner(X))


class Separate(Features):
    """Features of each output: several maps of one output, with equally many features, and weights of their own."""

    maps: tuple[Features, ...]

    def __init__(self, maps: Sequence[Features]):
        self.maps = tuple(maps)
        if not self.maps or not all(isinstance(each, Features) for each in self.maps):
            raise ValueError(f"Separate expects one or more of mercer.features, got {maps!r}")
        sizes = {each.num for each in self.maps}
        if len(sizes) > 1 or any(each.num_outputs not in (None, 1) for each in self.maps):
            raise ValueError(f"Separate expects maps of one output each, with equally many features, got {sizes}")

    @property
    def num(self):
        return self.maps[0].num

    @property
    def num_outputs(self):
        return len(self.maps)

    @property
    def blocks(self):
        return self.maps[0].blocks

    def parameters(self):
        found = [own for own in (each.parameters() for each in self.maps) if own is not None]
        return jnp.concatenate(found) if len(found) == len(self.maps) else None

    def offset(self, X):
        offsets = [each.offset(X) for each in self.maps]
        if all(offset is None for offset in offsets):
            return None
        return jnp.concatenate([jnp.zeros_like(X[:, :1]) if o is None else o for o in offsets], axis=1)

    def values(self, X):
        return jnp.concatenate([each.values(X) for each in self.maps])
