"""The table of a model: what it holds, and what training does with it."""

import sys
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest

import mercer as mc

sys.path += [str(Path(__file__).parent / folder) for folder in ("kernels",)]

from kernel_instances import KERNELS
from multioutput_instances import MULTIOUTPUT

Z = np.array([[0.0], [0.5], [1.5], [2.0], [4.0]])
MODEL = mc.Model(
    mc.Sparse(mc.GP(mc.kernels.RBF(0.7, 2.0) + mc.kernels.Linear([0.3])), mc.inducing.Points(Z)),
    mc.likelihoods.Gaussian(0.1),
)
TABLE = """
path                                           class     constraint        shape      dtype    value   training
---------------------------------------------  --------  ----------------  ---------  -------  ------  --------
posterior.prior.kernel.kernels[0].lengthscale  RBF       positive          ()         float64  0.7     trained
posterior.prior.kernel.kernels[0].variance     RBF       positive          ()         float64  2       trained
posterior.prior.kernel.kernels[1].variance     Linear    positive          (1,)       float64  [0.3]   trained
posterior.inducing.Z                           Points    real              (5, 1)     float64  0 to 4  held
posterior.q_mu                                 Sparse    real              (5, 1)     float64  all 0   trained
posterior.q_sqrt                               Sparse    lower_triangular  (1, 5, 5)  float64  0 to 1  trained
likelihood.variance                            Gaussian  positive          ()         float64  0.1     trained
39 parameters: 34 trained, 5 held; 0 constants
"""


def rows(model, frozen=None):
    return {row.path: row for row in mc.summary(model, frozen).rows}


def test_the_text_of_a_small_model():
    assert str(mc.summary(MODEL, frozen=lambda m: m.posterior.inducing)) == TABLE.strip()


def test_what_frozen_leads_to_is_held():
    def frozen(model):
        return model.posterior.prior.kernel, model.likelihood.variance

    held = {path for path, row in rows(MODEL, frozen).items() if row.training == "held"}
    assert held == {path for path in rows(MODEL) if "kernel" in path or "likelihood" in path}
    totals = mc.summary(MODEL, frozen)
    assert (totals.trained, totals.held, totals.constant) == (35, 4, 0)
    with pytest.raises(ValueError, match="frozen must be a function from the model to parts of it"):
        mc.summary(MODEL, frozen=lambda m: m.nothing)


def test_what_is_trained_is_what_fit_moves():
    X, Y = Z, np.sin(Z)
    after = mc.fit(MODEL, mc.objectives.ELBO(), (X, Y), steps=2, frozen=lambda m: m.posterior.inducing).model
    before, after = (dict(jax.tree_util.tree_flatten_with_path(model)[0]) for model in (MODEL, after))
    moved = {jax.tree_util.keystr(path).lstrip(".") for path in before if not np.array_equal(before[path], after[path])}
    table = rows(MODEL, lambda m: m.posterior.inducing)
    assert moved == {path for path, row in table.items() if row.training == "trained"}


def test_data_are_constants_and_networks_are_parameters():
    network = mc.means.Network(eqx.nn.MLP(1, 1, 3, 1, key=jax.random.key(0)))
    Y = np.where(Z > 3.0, np.nan, Z)
    table = rows(mc.Conditioned(mc.GP(mc.kernels.RBF(), network), Z, Y))
    assert table["X"].training == table["Y"].training == "constant"
    assert table["Y"].value == "0 to 2, 1 not finite"
    weight = table["prior.mean.module.layers[0].weight"]
    assert (weight.owner, weight.constraint, weight.training, weight.shape) == ("Linear", "real", "trained", "(3, 1)")


def test_a_notebook_shows_the_table_with_what_html_would_read_escaped():
    class Named(eqx.Module):
        parts: dict

    Named.__name__ = "<Named>"
    page = mc.summary(Named({"<b>": np.ones(2), "&": np.zeros(9)}))._repr_html_()
    assert "&lt;Named&gt;" in page and "&lt;b&gt;" in page and "&amp;" in page
    assert "<b>" not in page and "<Named>" not in page
    assert MODEL._repr_html_() == mc.summary(MODEL)._repr_html_()
    assert MODEL._repr_html_().count("<tr>") == 1 + len(rows(MODEL))


@pytest.mark.parametrize("name", [*KERNELS, *MULTIOUTPUT])
def test_every_kernel_has_a_table_with_all_of_its_arrays(name):
    kernel = (KERNELS | MULTIOUTPUT)[name]
    found = mc.summary(kernel)
    sizes = [leaf.size for leaf in jax.tree.leaves(kernel) if isinstance(leaf, jax.Array | np.ndarray)]
    assert len(found.rows) == len(sizes)
    assert found.trained + found.held + found.constant == sum(sizes)
    assert str(found).splitlines()[-1] == found.totals


def test_keys_and_drawn_functions_have_a_table():
    table = rows(mc.GP(mc.kernels.RBF()).sample_function(8, key=jax.random.key(0)))
    assert table["function.key"].value == "key"
    assert {row.training for row in table.values()} == {"constant"}
