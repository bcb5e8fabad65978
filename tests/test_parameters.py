"""Constraints and their inverses, what an optimiser may move, and that every public class says so."""

import collections.abc
import dataclasses
import importlib
import inspect
import pkgutil
import typing

import equinox as eqx
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jaxtyping import Array

import mercer
from mercer import kernels, means, parameters
from mercer.parameters import cast, constant, constrain, param, positive, real, trainable, unconstrain

CONSTRAINTS = ["real", "positive", "unit_interval", "lower_triangular", "ordered", "positive_definite"]
RTOL = {np.dtype(np.float32): 2e-4, np.dtype(np.float64): 1e-10}


def draws(low, high, shape):
    return hnp.arrays(np.float64, shape, elements=st.floats(low, high))


def _lower(matrix):
    return np.tril(matrix, -1) + np.diag(1.0 + np.abs(np.diag(matrix)))


MEMBERS = {
    "real": draws(-1e3, 1e3, 3),
    "positive": draws(-6.0, 6.0, 3).map(lambda exponents: 10.0**exponents),
    "unit_interval": draws(1e-3, 1.0 - 1e-3, 3),
    "lower_triangular": draws(-3.0, 3.0, (3, 3)).map(_lower),
    "ordered": draws(0.01, 10.0, 3).map(np.cumsum),
    "positive_definite": draws(-3.0, 3.0, (3, 3)).map(lambda A: _lower(A) @ _lower(A).T),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CONSTRAINTS)
class TestConstraints:
    @given(data=st.data())
    def test_members_survive_the_round_trip(self, name, dtype, data):
        constraint, value = getattr(parameters, name), data.draw(MEMBERS[name]).astype(dtype)
        assert constraint.contains(value)
        back = constraint.constrain(constraint.unconstrain(jnp.asarray(value)))
        assert back.dtype == dtype
        rtol = RTOL[back.dtype]
        np.testing.assert_allclose(back, value, rtol=rtol, atol=rtol * np.abs(value).max() if value.ndim == 2 else 0.0)

    @given(data=st.data())
    def test_anything_is_sent_into_the_set(self, name, dtype, data):
        constraint = getattr(parameters, name)
        free = data.draw(draws(-5.0, 5.0, (3, 3))).astype(dtype)
        if name == "lower_triangular":
            free += 10.0 * np.eye(3, dtype=dtype)  # this map leaves the diagonal as it is
        value = constraint.constrain(jnp.asarray(free))
        assert value.dtype == dtype and constraint.contains(np.asarray(value))


class Inner(parameters.Module):
    scale: Array = param(positive)
    table: Array = constant()
    label: str = eqx.field(static=True, default="inner")


class Outer(parameters.Module):
    inner: Inner
    held: Inner = constant()
    network: eqx.nn.MLP
    several: dict[str, list[Inner]]


class Scaling(eqx.Module):
    count: Array
    weight: Array

    def __call__(self, x):
        return self.weight * x


class Undeclared(parameters.Module):
    values: Array


def an_inner():
    return Inner(2.0, np.arange(3.0))


def an_outer():
    network = eqx.nn.MLP(2, 1, width_size=3, depth=1, key=jax.random.key(0))
    return Outer(an_inner(), an_inner(), network, {"a": [an_inner(), an_inner()]})


def a_kernel():
    return 2.0 * kernels.RBF([0.5, 1.5]) + kernels.ChangePoints([kernels.Linear(), kernels.Matern32(0.3)], [0.2]).on(1)


class TestTrainable:
    def test_what_is_declared(self):
        flags = trainable(an_outer())
        assert flags.inner.scale and not flags.inner.table
        assert all(inner.scale and not inner.table for inner in flags.several["a"])

    def test_everything_under_a_constant_is_constant(self):
        assert not any(jax.tree.leaves(trainable(an_outer()).held))

    def test_foreign_modules_are_all_parameters(self):
        model = an_outer()
        expected = jax.tree.map(eqx.is_inexact_array, model.network)
        assert jax.tree.leaves(trainable(model).network) == jax.tree.leaves(expected)
        assert sum(jax.tree.leaves(expected)) == 4

    def test_integers_are_not(self):
        flags = trainable(means.Network(Scaling(jnp.arange(2), jnp.ones(2))))
        assert jax.tree.leaves(flags) == [False, True]

    def test_an_undeclared_array_is_an_error(self):
        with pytest.raises(TypeError, match=r"\.values is declared neither param\(\.\.\.\) nor constant\(\)"):
            trainable(Undeclared(jnp.ones(2)))

    @pytest.mark.parametrize("container", [list, tuple, lambda parts: dict(enumerate(parts))])
    def test_containers_are_walked(self, container):
        flags = trainable(container([an_inner(), an_inner()]))
        assert jax.tree.leaves(flags) == [True, False, True, False]

    def test_named_tuples_are_walked(self):
        Pair = collections.namedtuple("Pair", ["first", "second"])
        assert jax.tree.leaves(trainable(Pair(an_inner(), an_inner()))) == [True, False, True, False]


class TestFreeParameters:
    @pytest.mark.parametrize("make", [an_inner, an_outer, a_kernel])
    def test_round_trip(self, make):
        model = make()
        back = constrain(unconstrain(model))
        assert jax.tree.structure(back) == jax.tree.structure(model)
        for (path, a, _), b in zip(parameters.declarations(back), jax.tree.leaves(model), strict=True):
            if eqx.is_array(a):
                np.testing.assert_allclose(a, b, rtol=1e-6, err_msg=path)

    def test_round_trip_is_that_of_a_double(self):
        model = cast(a_kernel(), jnp.float64)
        for a, b in zip(*map(jax.tree.leaves, (constrain(unconstrain(model)), model)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-13)

    def test_constants_do_not_move(self):
        model = an_outer()
        free = unconstrain(model)
        assert free.held.scale is model.held.scale and free.inner.table is model.inner.table
        np.testing.assert_allclose(free.inner.scale, np.log(np.expm1(2.0)), rtol=1e-6)

    def test_any_step_is_valid(self):
        free = jax.tree.map(lambda a: a - 3.0 if eqx.is_array(a) else a, unconstrain(a_kernel()))
        for path, leaf, declaration in parameters.declarations(constrain(free)):
            assert declaration.constraint.contains(np.asarray(leaf)), path

    def test_inside_jit(self):
        model = cast(a_kernel(), float)
        back = jax.jit(lambda m: constrain(unconstrain(m)))(model)
        for a, b in zip(*map(jax.tree.leaves, (back, model)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-13)


class TestFiniteNumbers:
    def test_a_finite_model_has_no_such_place(self):
        assert parameters.not_finite(an_outer()) is None and parameters.not_finite((a_kernel(), None, "text")) is None

    def test_the_place_of_a_parameter_and_of_a_constant(self):
        bad = eqx.tree_at(lambda m: m.inner.scale, an_outer(), jnp.asarray(jnp.nan))
        assert parameters.not_finite([0, bad]) == "[1].inner.scale"
        assert (
            parameters.not_finite(eqx.tree_at(lambda m: m.held.scale, an_outer(), jnp.asarray(jnp.inf)))
            == ".held.scale"
        )

    def test_numbers_that_no_class_declares_may_be_anything(self):
        assert parameters.not_finite({"loss": np.array([1.0, np.nan])}) is None

    def test_missing_outputs_may_be_nan_also_below_a_constant(self):
        prior, Y = mercer.GP(kernels.RBF()), np.array([[0.5], [np.nan]])
        exact = mercer.Conditioned(prior, np.zeros((2, 1)), Y)
        assert parameters.not_finite(exact) is None
        tempered = mercer.processes.Tempered(exact, jnp.ones(1))
        assert parameters.not_finite(tempered) is None
        bad = eqx.tree_at(lambda t: t.process.X, tempered, jnp.full((2, 1), jnp.nan))
        assert parameters.not_finite(bad) == ".process.X"

    def test_traced_values_are_not_looked_at(self):
        assert jax.jit(lambda m: jnp.asarray(parameters.not_finite(m) is None))(cast(a_kernel(), float))


class TestConstruction:
    def test_attributes_are_the_numbers(self):
        assert kernels.RBF(0.5).lengthscale == 0.5 and kernels.RBF([1, 2]).lengthscale.dtype == jnp.float64

    def test_a_python_number_takes_the_dtype_it_meets(self):
        assert (kernels.RBF(0.5).lengthscale * jnp.ones(2, jnp.float32)).dtype == jnp.float32

    def test_arrays_keep_their_dtype(self):
        assert kernels.RBF(np.float32([0.5, 1.0])).lengthscale.dtype == jnp.float32

    @pytest.mark.parametrize("value", [-1.0, 0.0, np.nan, np.inf, [1.0, -1.0]])
    def test_values_outside_the_set_are_refused(self, value):
        with pytest.raises(ValueError, match="RBF: lengthscale expects positive, finite values, got "):
            kernels.RBF(value)

    def test_large_arrays_are_refused_briefly(self):
        with pytest.raises(ValueError, match=r"an array of shape \(100,\) with minimum -1$"):
            kernels.RBF(np.r_[-1.0, np.ones(99)])

    def test_traced_values_make_a_model(self):
        X = jnp.ones((2, 1))
        slope = jax.jit(jax.grad(lambda v: kernels.RBF(variance=v)(X)[0, 0]))(2.0)
        np.testing.assert_allclose(slope, 1.0)

    def test_models_are_immutable(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            kernels.RBF().lengthscale = 2.0


class TestCast:
    def test_floats_only(self):
        class Mixed(parameters.Module):
            weights: Array = param(real)
            counts: Array = constant()
            mask: Array = constant()

        mixed = cast(Mixed(np.ones(2), np.arange(2), np.array([True, False])), jnp.float32)
        assert [leaf.dtype.name for leaf in jax.tree.leaves(mixed)] == ["float32", "int64", "bool"]

    def test_weak_types_become_strong(self):
        lengthscale = cast(kernels.RBF(0.5), jnp.float64).lengthscale
        assert lengthscale.dtype == jnp.float64 and not lengthscale.weak_type

    def test_what_needs_no_cast_is_the_same(self):
        kernel = kernels.RBF(jnp.ones(2))
        assert cast(kernel, jnp.float64).lengthscale is kernel.lengthscale


def public_classes():
    """Every subclass of Module that a public subpackage (or module) of mercer exports."""
    found = {}
    for module in pkgutil.walk_packages(mercer.__path__, "mercer."):
        if any(part.startswith("_") for part in module.name.split(".")):
            continue
        package = importlib.import_module(module.name)
        for name in getattr(package, "__all__", ()):
            value = getattr(package, name)
            if inspect.isclass(value) and issubclass(value, parameters.Module):
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return found


PUBLIC = public_classes()


def mentions_array(annotation):
    if typing.get_origin(annotation) is collections.abc.Callable:
        return False  # a function of arrays holds none
    parts = typing.get_args(annotation)
    return any(map(mentions_array, parts)) if parts else any(word in str(annotation) for word in ("Array", "Float"))


def undeclared_arrays(kind):
    """The fields that hold arrays, by annotation or by default, and are neither param, constant nor static."""
    return [
        field.name
        for field in dataclasses.fields(kind)
        if (mentions_array(field.type) or isinstance(field.default, jax.Array | np.ndarray))
        and parameters._DECLARATION not in field.metadata
        and not field.metadata.get("static")
    ]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_classes_declare_their_arrays(name):
    assert undeclared_arrays(PUBLIC[name]) == []


def test_the_walk_sees_undeclared_arrays():
    assert undeclared_arrays(Undeclared) == ["values"] and undeclared_arrays(Outer) == undeclared_arrays(Inner) == []
    assert {kernels.RBF, means.Linear} <= set(PUBLIC.values())
