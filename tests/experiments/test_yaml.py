"""Objects from YAML and back: what is written is what is read, and what is wrong is said in one sentence."""

import random
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mercer as mc
from mercer.experiments import ConfigurationError, from_yaml, to_yaml
from mercer.experiments.building import Attributes
from mercer.experiments.text import parse, written

X = np.random.default_rng(0).normal(size=(12, 2))
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)

MODEL = """
type: Model
posterior:
  type: Sparse
  prior:
    type: GP
    kernel: {type: Sum, kernels: [RBF, {type: Matern32, lengthscale: [1, 2.0]}]}
  inducing: {type: Points, Z: {type: kmeans, X: $X, M: 5}}
likelihood: {type: Gaussian, variance: 1e-2}
"""


def same(one, other):
    return bool(eqx.tree_equal(one, other, typematch=True))


class TestText:
    @given(plain_values)
    def test_there_and_back(self, value):
        back = parse(written(value)).value
        assert back == value and type(back) is type(value)

    def test_numbers_are_those_of_the_newer_standard(self):
        text = "[1e-3, 1.e5, .5, -0x10, 0o17, 1_000, no, yes, on, 12:30, 2001-01-01, ~, 'true', -.inf]"
        expected = [
            1e-3,
            1e5,
            0.5,
            "-0x10",
            15,
            "1_000",
            "no",
            "yes",
            "on",
            "12:30",
            "2001-01-01",
            None,
            "true",
            -np.inf,
        ]
        assert parse(text).value == expected

    def test_merging(self):
        value = parse("a: &a {x: 1, y: {z: 2}}\nb: {<<: *a, x: 3, w: 4}").value
        assert value["b"] == {"x": 3, "y": {"z": 2}, "w": 4} and list(value["b"]) == ["x", "y", "w"]

    def test_lines(self):
        document = parse("a: 1\nb:\n\n  c: [1,\n   2]\n")
        assert document.lines == {(): 1, ("a",): 1, ("b",): 2, ("b", "c"): 4, ("b", "c", 0): 4, ("b", "c", 1): 5}

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (
                "a: !!python/object/apply:os.system [ls]",
                "tag 'tag:yaml.org,2002:python/object/apply:os.system' is refused",
            ),
            ("a: !!python/name:os.system", "is refused"),
            ("a: !mine 3", "the tag '!mine' is refused"),
            ("a: 1\nb: 2\na: 3", "'a' is given twice, again on line 3"),
            ("a: [1", "line 1: this is not YAML"),
            ("? [1, 2]\n: 3", "a key that is not a text"),
            ("a: &x [*x]", "nested more than"),
            ("a: &x {<<: *x}", "nested more than"),
            ("a: {<<: [1]}", "line 1: a.<<: a mapping is expected"),
            ("a: \x00", "this is not YAML"),
            ("%FOO", "this is not YAML"),
            ("a: 1\n---\nb: 2", "this is not YAML"),
            (f"a: {'9' * 5000}", "an integer of more than 30 digits"),
            (
                "a: &a [1]\n"
                + "".join(
                    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
                ),
                "more than 1,000,000 values",
            ),
        ],
    )
    def test_refusals(self, text, said):
        with pytest.raises(ConfigurationError, match=re.escape(said)) as caught:
            parse(text)
        assert "\n" not in str(caught.value)


class TestFromYaml:
    def test_several_paths_of_attributes(self):
        kernel = mc.kernels.Sum.of_subsets(mc.kernels.RBF(0.3), 3)
        one, each, both = (
            Attributes(path)(kernel) for path in (".kernels[0]", ".kernels[*].dims", ".kernels, .kernels")
        )
        assert one is kernel.kernels[0] and both == (kernel.kernels, kernel.kernels)
        assert each == ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2))
        assert Attributes(".kernels[-1]")(kernel) is kernel.kernels[-1]
        assert from_yaml("$kernel.kernels[-2].dims[-1]", kernel=kernel) == 2
        last = from_yaml("{type: MAP, objective: ELBO, priors: [['.kernels[-1]', Normal]]}").priors[0][0]
        assert last(kernel) is kernel.kernels[5]
        assert Attributes(".kernels[0], .kernels[*].dims")(kernel) == (one, *each)  # flat: what `frozen` of a fit takes
        with pytest.raises(ValueError, match="private"):
            Attributes(".kernels[*]._matrix")(kernel)
        with pytest.raises(ValueError, match=re.escape("there is no .kernels[9].dims: .kernels is tuple")):
            Attributes(".kernels[9].dims")(kernel)
        with pytest.raises(ValueError, match=re.escape("there is no .kernels[0].kernel[*]: .kernels[0].kernel is RBF")):
            Attributes(".kernels[0].kernel[*]")(kernel)

    def test_a_function_that_makes_kernels(self):
        text = "{type: Deep.of, X: $X, num_layers: 2, num_inducing: 3, kernel: ArcCosine.with_lengthscales}"
        kernel = from_yaml(text, X=X).layers[1].prior.kernel
        np.testing.assert_allclose(kernel.weight_variance, 1.0 / X.shape[1])

    def test_a_model(self):
        model = from_yaml(MODEL, X=X)
        kernel = mc.kernels.RBF() + mc.kernels.Matern32([1.0, 2.0])
        expected = mc.Model(
            mc.Sparse(mc.GP(kernel), mc.inducing.Points(model.posterior.inducing.Z)), mc.likelihoods.Gaussian(0.01)
        )
        assert same(model, expected)
        assert model.posterior.inducing.Z.shape == (5, X.shape[1])

    def test_what_is_random_follows_from_the_key_and_the_place(self):
        text = "[{type: MLP, in_size: 1, out_size: 1, width_size: 3, depth: 1, activation: tanh}]"
        [one], [again], [other] = (from_yaml(text, key=jax.random.key(seed)) for seed in (0, 0, 1))
        assert same(one, again) and not same(one, other)
        assert one.activation is jax.nn.tanh

    def test_networks_layer_by_layer(self):
        layers = "[{type: equinox.nn.Linear, in_features: 2, out_features: 3, key: 1}, {type: Lambda, fn: tanh}]"
        module = from_yaml(f"{{type: means.Network, module: {{type: Sequential, layers: {layers}}}}}")
        first = eqx.nn.Linear(2, 3, key=jax.random.key(1))
        assert jnp.allclose(module(X[:, :2]), jnp.tanh(jax.vmap(first)(X[:, :2])))

    def test_optimisers_and_schedules(self):
        text = "{type: adam, learning_rate: {type: exponential_decay, init_value: 0.1, transition_steps: 10, decay_rate: 0.5}}"
        made, expected = from_yaml(text), optax.adam(optax.exponential_decay(0.1, 10, 0.5))
        params = {"a": jnp.ones(2)}
        states = [each.init(params) for each in (made, expected)]
        for _ in range(3):
            moves, states = zip(
                *[each.update(params, state) for each, state in zip((made, expected), states, strict=True)], strict=True
            )
        assert same(*moves)
        assert from_yaml("{type: chain, args: [{type: clip, max_delta: 1.0}, {type: sgd, learning_rate: 0.1}]}")

    def test_paths_of_attributes(self, tmp_path):
        text = "{type: MAP, objective: ELBO, priors: [[.posterior.prior.kernel.lengthscale, {type: LogNormal}]]}"
        objective = from_yaml(text)
        assert same(from_yaml(to_yaml(objective)), objective)
        assert "- .posterior.prior.kernel.lengthscale" in to_yaml(objective)
        [(where, prior)] = objective.priors
        model = mc.Model(mc.Sparse(mc.GP(mc.kernels.RBF(0.3)), mc.inducing.Points([[0.0]])), mc.likelihoods.Gaussian())
        assert float(where(model)) == pytest.approx(0.3)
        assert isinstance(prior, mc.priors.LogNormal)
        mc.save(tmp_path / "objective", objective)
        assert same(mc.load(tmp_path / "objective"), objective)

    def test_other_constructors(self):
        deep = from_yaml("{type: Deep.of, X: $X, num_layers: 2, num_inducing: 4, kernel: Matern52}", X=X)
        assert isinstance(deep, mc.Deep) and isinstance(deep.layers[0].prior.kernel, mc.kernels.Matern52)

    def test_references(self):
        text = "{type: Conditioned, prior: $found.prior, X: $data.0, Y: $data.1, noise: 0.1}"
        prior, data = mc.GP(mc.kernels.RBF()), (X[:5], X[:5, :1])
        process = from_yaml(text, found=mc.Conditioned(prior, *data, 0.2), data=data)
        assert same(process, mc.Conditioned(prior, *data, 0.1))

    def test_arithmetic_with_one_number(self):
        for said, value in {"$N * 2": 100, "$N+1": 51, "$N - 1e+1": 40.0, "$N*-.5": -25.0, "$M[-1]-1": 2}.items():
            found = from_yaml(said, N=50, M=[1, 3])
            assert found == value and type(found) is type(value)
        assert np.array_equal(from_yaml("$X * 2", X=X), 2.0 * X)
        with pytest.raises(ConfigurationError, match=re.escape("$M is no number, but list")):
            from_yaml("$M * 2", M=[1, 3])

    def test_multiples(self):
        objective = "{type: GVI, prior: {type: GP, kernel: RBF}, risk: ExpectedNegativeLogLikelihood, weight: WEIGHT, "
        objective += "divergence: KL}"
        assert from_yaml(objective.replace("WEIGHT", "$N * 1e-1"), N=50).weight == 5.0
        assert from_yaml(objective.replace("WEIGHT", "$N"), N=50).weight == 50.0

    def test_lengthscales_of_the_columns(self):
        kernel = from_yaml(
            "{type: RBF, lengthscale: {type: lengthscales, X: $X}}", X=np.stack([X[:, 0], 0.0 * X[:, 0]], 1)
        )
        assert np.allclose(kernel.lengthscale, 2.0**0.5 * np.array([X[:, 0].std(), 1.0]))

    def test_a_class_of_the_user_takes_part_once_it_is_registered(self):
        text = "{type: GP, kernel: {type: Wobbly, lengthscale: 0.7}}"
        with pytest.raises(ConfigurationError, match="there is no 'Wobbly' here"):
            from_yaml(text)

        @mc.io.register(name="here.Wobbly")
        class Wobbly(mc.kernels.Stationary):
            def of_squared_distance(self, r2):
                return self.variance * jnp.exp(-r2)

        assert isinstance(from_yaml(text).kernel, Wobbly)
        assert from_yaml(to_yaml(mc.GP(Wobbly(0.3)))).kernel.lengthscale == 0.3

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("type: RFB", "line 1: type: there is no 'RFB' here; did you mean 'RBF'?"),
            ("type: RBF\nlengthscal: 1", "line 2: lengthscal: unknown setting; did you mean 'lengthscale'?"),
            ("type: GP\nkernel:\n  type: RBF\n  lengthscale: -1", "line 2: kernel: RBF: lengthscale expects positive"),
            ("{type: GP, kernel: 3}", "line 1: kernel: expected a Kernel or a MultioutputKernel, got 3"),
            ("{type: GP, kernel: Sparse}", "kernel: there is no 'Sparse' here"),
            ("{type: GP, kernel: {lengthscale: 1}}", "kernel: 'type' is missing"),
            (
                "{type: GP, kernel: {type: RBF, lengthscale: a}}",
                "kernel.lengthscale: expected a number or lists of numbers, got 'a'",
            ),
            ("{type: RBF, lengthscale: [1, [2]]}", "lengthscale: expected lists of numbers of the same length"),
            ("{type: inducing.Points, Z: $Q}", "Z: there is no $Q here; there are X"),
            ("{type: inducing.Points, Z: $X.nothing}", "Z: $X.nothing is not there"),
            ("{type: inducing.Points, Z: $X.__class__}", "Z: $X.__class__ is not there: '__class__' is private"),
            ("{type: inducing.Points, Z: '$'}", "Z: expected a name after $"),
            ("{type: inducing.Points, Z: '$X * X'}", "Z: expected a name after $"),
            ("{type: Points}", "did you mean 'inducing.Points' or 'objectives.Points'?"),
            ("{type: GP}", "line 1: 'kernel' is missing"),
            (
                "{type: NNGP, layers: [{type: Dense}, {type: kernels.Elementwise, fn: tann}]}",
                "layers[1].fn: there is no function of this name; did you mean 'tan'?",
            ),
            (
                "{type: mercer.Sparse, prior: {type: GP, kernel: RBF}, inducing: {type: Points, Z: [[1]]}, whiten: 1}",
                "whiten: expected true or false, got 1",
            ),
            (
                "{type: adam, learning_rate: {type: cosine_decay_schedule, init_value: 1, decay_steps: 1.5}}",
                "learning_rate.decay_steps: expected an integer, got 1.5",
            ),
            ("{type: NNGP, layers: [], image_shape: [.nan]}", "image_shape"),
            ("{type: mercer.inducing.kmeans, X: $X, M: .inf}", "M: expected an integer, got inf"),
            (
                "{saved: {class: os.system, fields: {}}}",
                "what is saved here cannot be read: the class 'os.system' is not known here",
            ),
            ("{saved: {function: builtins.eval}}", "what is saved here cannot be read"),
            ("{type: chain, args: {saved: 1}}", "args: expected a list, got int"),
        ],
    )
    def test_mistakes(self, text, said):
        with pytest.raises(ConfigurationError) as caught:
            from_yaml(text, X=X)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


class TestToYaml:
    def test_only_what_must_be_said_is(self):
        kernel = mc.kernels.RBF(0.5) + mc.kernels.Matern32()
        assert to_yaml(mc.GP(kernel)) == (
            "type: GP\nkernel:\n  type: Sum\n  kernels:\n  - type: RBF\n    lengthscale: 0.5\n  - type: Matern32\n"
        )

    def test_what_no_constructor_makes_is_written_by_its_fields(self):
        layer = eqx.nn.Linear(1, 2, key=jax.random.key(0))
        text = to_yaml(mc.means.Network(layer))
        assert text.startswith("type: Network") is False and "saved:" in text
        assert same(from_yaml(text), mc.means.Network(layer))


def mutated(text: str, source: random.Random) -> str:
    """A text with a character, a word or a line changed, removed, doubled or moved."""
    pieces = re.split(source.choice([r"(\n)", r"(\W)", "()"]), text)
    for _ in range(source.randint(1, 3)):
        at, other = (source.randrange(len(pieces)) for _ in range(2))
        action = source.randrange(5)
        if action == 0:
            pieces[at] = ""
        elif action == 1:
            pieces[at] *= 2
        elif action == 2:
            pieces[at], pieces[other] = pieces[other], pieces[at]
        else:
            pieces[at] = source.choice(
                ["!!python/object/apply:os.abort []", "-1", "[", "{", "null", "$X", "*a", "1e400", "é", "RBF"]
            )
    return "".join(pieces)


def test_files_with_mistakes_give_one_sentence():
    source = random.Random(0)
    for _ in range(500):
        text = mutated(MODEL, source)
        try:
            from_yaml(text, X=X)
        except ConfigurationError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000, text


def test_equal_optimisers_are_one():
    """So that cells which share a program compile it once."""
    schedule = "{type: cosine_decay_schedule, init_value: 0.1, decay_steps: 10}"
    adam = f"{{type: adam, learning_rate: {schedule}}}"
    chain = f"{{type: chain, args: [{{type: clip_by_global_norm, max_norm: 1.0}}, {adam}]}}"
    joined = f"{{type: join_schedules, schedules: [{schedule}, {schedule}], boundaries: [5]}}"
    for text in ("lbfgs", schedule, adam, chain, joined):
        assert from_yaml(text) is from_yaml(text)
    assert from_yaml("{type: sgd, learning_rate: 0.1}") is not from_yaml("{type: sgd, learning_rate: 0.2}")
    assert from_yaml("RBF") is not from_yaml("RBF")
