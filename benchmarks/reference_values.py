"""Reference values of GPflow and GPyTorch on the Snelson data, written to `tests/reference/snelson.json`.

    python benchmarks/reference_values.py

runs each library in its own environment (see `peers.py`) on one problem: fixed hyperparameters, float64, jitter 1e-12.
Both libraries answer in the same layout, so that "agreement" can be taken number by number; "sensitivity" is the change
of every quantity when the jitter is ten times larger, i.e. how many digits of it do not depend on the jitter.
"""

import argparse
import json
import subprocess
import sys

import numpy as np

from peers import REPOSITORY, data_folder, python_of

OUTPUT = REPOSITORY / "tests" / "reference" / "snelson.json"
JITTER = 1e-12
NOISE = 0.09
VARIANCE, LENGTHSCALE = 0.8, 0.7
STUDENT_T = {"df": 3.0, "scale": 0.5}

STATIONARY = {"variance": VARIANCE, "lengthscale": LENGTHSCALE}
ARC = {"variance": VARIANCE, "weight_variance": 0.6, "bias_variance": 0.4}
KERNELS = {
    "RBF": STATIONARY | {"formula": "variance exp(-r^2 / 2), r = |x - y| / lengthscale"},
    "Matern12": STATIONARY | {"formula": "variance exp(-r)"},
    "Matern32": STATIONARY | {"formula": "variance (1 + a) exp(-a), a = sqrt(3) r"},
    "Matern52": STATIONARY | {"formula": "variance (1 + a + a^2 / 3) exp(-a), a = sqrt(5) r"},
    "RationalQuadratic": STATIONARY | {"alpha": 1.5, "formula": "variance (1 + r^2 / (2 alpha))^(-alpha)"},
    "Periodic": STATIONARY
    | {"period": 2.3, "formula": "variance exp(-sum_d sin^2(pi (x_d - y_d) / period) / (2 lengthscale^2)), base RBF"},
    "PeriodicMatern32": STATIONARY
    | {"period": 2.3, "formula": "Matern32 at r = sum_d |sin(pi (x_d - y_d) / period)| / lengthscale"},
    "Cosine": STATIONARY | {"formula": "variance cos(2 pi sum_d (x_d - y_d) / lengthscale)"},
    "Linear": {"variance": 0.3, "formula": "variance x.y"},
    "Polynomial": {"variance": 0.3, "offset": 1.2, "degree": 3, "formula": "(variance x.y + offset)^degree"},
    "Constant": {"variance": VARIANCE, "formula": "variance"},
    "ArcCosine0": ARC | {"formula": "variance / pi (pi - theta)"},
    "ArcCosine1": ARC | {"formula": "variance / pi (sin theta + (pi - theta) cos theta) n(x) n(y)"},
    "ArcCosine2": ARC
    | {
        "formula": "variance / pi (3 sin theta cos theta + (pi - theta) (1 + 2 cos^2 theta)) n(x)^2 n(y)^2; for all "
        "orders cos theta = p(x, y) / (n(x) n(y)), n(x)^2 = p(x, x), p(x, y) = weight_variance x.y + bias_variance"
    },
    "Linear+RBF": {"formula": "the sum of Linear and RBF above"},
    "Linear*RBF": {"formula": "the product of Linear and RBF above"},
}
ARD_LENGTHSCALES = [0.7, 1.3]
ARD_KERNELS = ["RBF", "Matern12", "Matern32", "Matern52", "RationalQuadratic"]

POINTS = np.array([[-1.0], [0.0], [0.3], [1.1], [2.5]])
POINTS_2D = np.array([[-1.0, 0.2], [0.0, 0.0], [0.3, -0.7], [1.1, 1.9], [2.5, -0.4]])

CONVENTIONS = {
    "gpflow": {
        "Periodic": "no factor 4 in the exponent: a lengthscale of GPflow is half of MacKay's (1998, eq. 47) and of "
        "tinygp's; a base kernel that is a function of r (Matern, RQ is of r^2) gets r = sum_d |sin|/lengthscale",
        "Cosine": "lengthscale is the period; differences are signed and summed over dimensions",
        "ArcCosine": "K bends cos theta by 1e-15 before arccos: its diagonal is off by up to 1e-7, K_diag is not",
        "Bernoulli": "GPflow's inv_probit(f) is 1e-3 + (1 - 2e-3) Phi(f): block bernoulli_gpflow_link; block bernoulli "
        "replaces log p(y | f) with log Phi((2y - 1) f), quadrature unchanged",
        "Poisson": "exp link has a closed-form expectation: block poisson; block poisson_quadrature takes the same by "
        "quadrature; predictions of both by quadrature",
        "quadrature": "Gauss-Hermite, 20 points (GPflow's default)",
        "jitter": f"gpflow.config jitter = {JITTER} (default 1e-6), on Kuu only; GPR has none",
        "q(u)": "whitened: u = L v, L = chol(Kuu), q(v) = N(q_mu, q_sqrt q_sqrt^T)",
        "y_var": "variance of y: for Bernoulli p - p^2",
        "log_density": "log of the integral of p(y | f) q(f), one number per point of X_new",
        "natural_gradient": "NaturalGradient(gamma) with XiNat, full batch, one step from q_mu, q_sqrt of the problem",
    },
    "gpytorch": {
        "variance": "ScaleKernel's outputscale",
        "Periodic": "exp(-2 sin^2 / lengthscale), lengthscale not squared: set to 4 lengthscale^2 to agree with GPflow",
        "Cosine": "cos(pi |x - y|_2 / period): period is half of GPflow's lengthscale",
        "Polynomial": "(x.y + offset)^power: inputs are scaled by sqrt(variance) to agree with GPflow",
        "Gaussian": "noise is the variance",
        "StudentT": "noise is scale^2",
        "Bernoulli": "log Phi below -1 by an expansion that is off by up to 2e-3 (at -1), hence the poor agreement",
        "Poisson": "softplus link: block poisson_softplus, which is also computed by GPflow",
        "quadrature": "Gauss-Hermite, 20 points (GPyTorch's default)",
        "jitter": f"variational_cholesky_jitter (default 1e-6) = cholesky_jitter = {JITTER}; CG and Lanczos off",
        "elbo": "GPyTorch divides objectives by the number of data: multiplied back here",
        "SGPR": "InducingPointKernel; bound only",
    },
}


def problem() -> dict:
    """The data and the variational parameters, the same for every library."""
    snelson = np.load(data_folder() / "oned" / "snelson.npz")
    X, y, X_new = snelson["X"], snelson["y"], snelson["X_test"][::50]
    y_new = np.sin(X_new[:, 0])
    inducing = {"subset": X[::10], "grid": np.linspace(0.0, 6.0, 12)[:, None]}
    return {
        "X": X,
        "X_new": X_new,
        "y": {"real": y, "binary": (y > 0).astype(float), "count": np.round(np.exp(y))},
        "y_new": {"real": y_new, "binary": (y_new > 0).astype(float), "count": np.round(np.exp(y_new))},
        "Z": inducing,
        "q": variational_parameters(len(inducing["grid"])),
    }


def variational_parameters(M: int) -> dict:
    """q_mu_i = sin(i); q_sqrt_ij = 0.3 cos(i + 2j) / (1 + |i - j|) below and 0.5 + 0.1 cos(i)^2 on the diagonal."""
    i, j = np.arange(M)[:, None], np.arange(M)[None, :]
    q_sqrt = 0.3 * np.tril(np.cos(i + 2 * j) / (1 + np.abs(i - j)), -1)
    return {"q_mu": np.sin(np.arange(M)), "q_sqrt": q_sqrt + np.diag(0.5 + 0.1 * np.cos(np.arange(M)) ** 2)}


# ---- GPflow ----------------------------------------------------------------------------------------------------------


def gpflow_values(data: dict, jitter: float) -> dict:
    """Every quantity that GPflow has."""
    import gpflow
    import tensorflow as tf
    import tensorflow_probability as tfp

    gpflow.config.set_default_jitter(jitter)
    k, lik = gpflow.kernels, gpflow.likelihoods
    X, X_new = data["X"], data["X_new"]

    def kernel(name, lengthscale=LENGTHSCALE):
        stationary = {"variance": VARIANCE, "lengthscales": lengthscale}
        if name in ("RBF", "Matern12", "Matern32", "Matern52", "Cosine"):
            return getattr(k, name)(**stationary)
        if name == "RationalQuadratic":
            return k.RationalQuadratic(alpha=1.5, **stationary)
        if name.startswith("Periodic"):
            base = k.Matern32 if name.endswith("Matern32") else k.RBF
            return k.Periodic(base(**stationary), period=2.3)
        if name.startswith("ArcCosine"):
            return k.ArcCosine(int(name[-1]), VARIANCE, weight_variances=0.6, bias_variance=0.4)
        if "+" in name or "*" in name:
            return kernel("Linear") + kernel("RBF") if "+" in name else kernel("Linear") * kernel("RBF")
        return {
            "Linear": lambda: k.Linear(0.3),
            "Polynomial": lambda: k.Polynomial(degree=3, variance=0.3, offset=1.2),
            "Constant": lambda: k.Constant(VARIANCE),
        }[name]()

    class Probit(lik.Bernoulli):
        """Bernoulli with the exact probit link."""

        def _scalar_log_prob(self, X, F, Y):
            return tfp.distributions.Normal(tf.zeros((), F.dtype), 1.0).log_cdf((2.0 * Y - 1.0) * F)

        def _predict_mean_and_var(self, X, Fmu, Fvar):
            p = tfp.distributions.Normal(tf.zeros((), Fmu.dtype), 1.0).cdf(Fmu / tf.sqrt(1.0 + Fvar))
            return p, p - p**2

    likelihoods = {
        "gaussian": ("real", lik.Gaussian(NOISE)),
        "bernoulli": ("binary", Probit()),
        "bernoulli_gpflow_link": ("binary", lik.Bernoulli()),
        "poisson": ("count", lik.Poisson()),
        "poisson_quadrature": ("count", lik.Poisson(invlink=lambda f: tf.exp(f))),
        "poisson_softplus": ("count", lik.Poisson(invlink=tf.nn.softplus)),
        "student_t": ("real", lik.StudentT(**STUDENT_T)),
    }

    def predictions(model, kind):
        y_new = data["y_new"][kind][:, None]
        (f_mean, f_var), (y_mean, y_var) = model.predict_f(X_new), model.predict_y(X_new)
        density = model.predict_log_density((X_new, y_new))
        return {"f_mean": f_mean, "f_var": f_var, "y_mean": y_mean, "y_var": y_var, "log_density": density}

    def gpr(name):
        model = gpflow.models.GPR((X, data["y"]["real"][:, None]), kernel(name), noise_variance=NOISE)
        return {"log_marginal_likelihood": model.log_marginal_likelihood()} | predictions(model, "real")

    def gpr_covariance():
        model = gpflow.models.GPR((X, data["y"]["real"][:, None]), kernel("RBF"), noise_variance=NOISE)
        return model.predict_f(X_new, full_cov=True)[1][0]

    def sgpr(Z):
        model = gpflow.models.SGPR((X, data["y"]["real"][:, None]), kernel("RBF"), Z, noise_variance=NOISE)
        return {"elbo": model.elbo(), "upper_bound": model.upper_bound()} | predictions(model, "real")

    def svgp_model(likelihood, whiten):
        q = data["q"]
        return gpflow.models.SVGP(
            kernel("RBF"), likelihood, data["Z"]["grid"], whiten=whiten, num_data=len(X),
            q_mu=q["q_mu"][:, None], q_sqrt=q["q_sqrt"][None],
        )  # fmt: skip

    def svgp(name, whiten):
        kind, likelihood = likelihoods[name]
        model, Y = svgp_model(likelihood, whiten), data["y"][kind][:, None]
        values = {"elbo": model.elbo((X, Y)), "kl": model.prior_kl(), "elbo_first_50": model.elbo((X[:50], Y[:50]))}
        return values | predictions(model, kind)

    def natural_gradient(name, whiten, gamma):
        kind, likelihood = likelihoods[name]
        model, Y = svgp_model(likelihood, whiten), data["y"][kind][:, None]
        step = gpflow.optimizers.NaturalGradient(gamma)
        step.minimize(model.training_loss_closure((X, Y), compile=False), [(model.q_mu, model.q_sqrt)])
        return {"elbo": model.elbo((X, Y)), "q_mu": model.q_mu, "q_sqrt": model.q_sqrt[0]}

    both = {"whitened": True, "unwhitened": False}
    ard = {name: kernel(name, ARD_LENGTHSCALES)(POINTS_2D) for name in ARD_KERNELS}
    return {
        "kernels": {name: kernel(name)(POINTS) for name in KERNELS},
        "kernels_ard": ard,
        "gpr": {name: gpr(name) for name in KERNELS},
        "gpr_f_cov": {"RBF": gpr_covariance()},
        "sgpr": {place: sgpr(Z) for place, Z in data["Z"].items()},
        "svgp": {w: {name: svgp(name, white) for name in likelihoods} for w, white in both.items()},
        "natural_gradient": {
            w: {
                f"{name}, gamma={gamma}": natural_gradient(name, white, gamma)
                for name, gamma in [("gaussian", 1.0), ("gaussian", 0.1), ("bernoulli", 0.1), ("poisson", 0.1)]
            }
            for w, white in both.items()
        },
    }


# ---- GPyTorch --------------------------------------------------------------------------------------------------------


def gpytorch_values(data: dict, jitter: float) -> dict:
    """Those of the quantities that GPyTorch has."""
    import gpytorch
    import torch

    torch.set_default_dtype(torch.float64)
    k, lik, tensor = gpytorch.kernels, gpytorch.likelihoods, torch.as_tensor
    X, X_new, y = tensor(data["X"]), tensor(data["X_new"]), tensor(data["y"]["real"])
    y_new = tensor(data["y_new"]["real"])

    def stationary(base, lengthscale):
        base.lengthscale = tensor(lengthscale)
        return scaled(base)

    def scaled(base, variance=VARIANCE):
        kernel = k.ScaleKernel(base)
        kernel.outputscale = variance
        return kernel

    class Polynomial(k.PolynomialKernel):
        """GPyTorch's, with inputs scaled by the square root of the variance."""

        def forward(self, x1, x2, **kwargs):
            return super().forward(x1 * 0.3**0.5, x2 * 0.3**0.5, **kwargs)

    def kernel(name, lengthscale=LENGTHSCALE):
        ard = {"ard_num_dims": len(lengthscale)} if isinstance(lengthscale, list) else {}
        if name == "RBF":
            return stationary(k.RBFKernel(**ard), lengthscale)
        if name.startswith("Matern"):
            return stationary(k.MaternKernel(nu=int(name[-2]) / 2, **ard), lengthscale)
        if name == "RationalQuadratic":
            base = k.RQKernel(**ard)
            base.alpha = 1.5
            return stationary(base, lengthscale)
        if name == "Periodic":
            base = k.PeriodicKernel()
            base.period_length = 2.3
            return stationary(base, 4 * lengthscale**2)
        if name == "Cosine":
            base = k.CosineKernel()
            base.period_length = lengthscale / 2
            return scaled(base)
        if name == "Linear":
            base = k.LinearKernel()
            base.variance = 0.3
            return base
        if name == "Polynomial":
            base = Polynomial(power=3)
            base.offset = 1.2
            return base
        return {"Linear+RBF": k.AdditiveKernel, "Linear*RBF": k.ProductKernel}[name](kernel("Linear"), kernel("RBF"))

    names = [name for name in KERNELS if not name.startswith(("ArcCosine", "PeriodicMatern", "Constant"))]

    class Exact(gpytorch.models.ExactGP):
        def __init__(self, covariance, likelihood):
            super().__init__(X, y, likelihood)
            self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), covariance

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def gaussian():
        likelihood = lik.GaussianLikelihood()
        likelihood.noise = NOISE
        return likelihood

    def bound(covariance, likelihood):
        model = Exact(covariance, likelihood).train()
        return len(X) * gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)(model(X), y), model

    def gpr(name):
        likelihood = gaussian()
        evidence, model = bound(kernel(name), likelihood)
        model.eval(), likelihood.eval()
        f = model(X_new)
        y_ = likelihood(f)
        density = torch.distributions.Normal(y_.mean, y_.variance.sqrt()).log_prob(y_new)
        return {
            "log_marginal_likelihood": evidence, "f_mean": f.mean, "f_var": f.variance,
            "y_mean": y_.mean, "y_var": y_.variance, "log_density": density,
        }  # fmt: skip

    def sgpr(Z):
        likelihood = gaussian()
        return {"elbo": bound(k.InducingPointKernel(kernel("RBF"), tensor(Z), likelihood), likelihood)[0]}

    class Sparse(gpytorch.models.ApproximateGP):
        def __init__(self, whiten):
            Z, q = tensor(data["Z"]["grid"]), data["q"]
            distribution = gpytorch.variational.CholeskyVariationalDistribution(len(Z))
            family = "VariationalStrategy" if whiten else "UnwhitenedVariationalStrategy"
            strategy = getattr(gpytorch.variational, family)(self, Z, distribution)
            super().__init__(strategy)
            self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel("RBF")
            distribution.variational_mean.data = tensor(q["q_mu"])
            distribution.chol_variational_covar.data = tensor(q["q_sqrt"])
            strategy.variational_params_initialized.fill_(1)

        forward = Exact.forward

    def student_t():
        likelihood = lik.StudentTLikelihood()
        likelihood.deg_free, likelihood.noise = STUDENT_T["df"], STUDENT_T["scale"] ** 2
        return likelihood

    likelihoods = {
        "gaussian": ("real", gaussian()),
        "bernoulli": ("binary", lik.BernoulliLikelihood()),
        "poisson_softplus": ("count", lik.PoissonLikelihood()),
        "student_t": ("real", student_t()),
    }

    def svgp(name, whiten):
        kind, likelihood = likelihoods[name]
        model, target = Sparse(whiten).train(), tensor(data["y"][kind])
        elbo = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(X))
        value = len(X) * elbo(model(X), target)
        kl = model.variational_strategy.kl_divergence()
        f = model.eval()(X_new)
        return {"elbo": value, "kl": kl, "f_mean": f.mean, "f_var": f.variance}

    both = {"whitened": True, "unwhitened": False}
    settings = gpytorch.settings
    with (
        torch.no_grad(),
        settings.fast_computations(covar_root_decomposition=False, log_prob=False, solves=False),
        settings.variational_cholesky_jitter(double_value=jitter),
        settings.cholesky_jitter(double_value=jitter),
    ):
        return {
            "kernels": {name: kernel(name)(tensor(POINTS)).to_dense() for name in names},
            "kernels_ard": {n: kernel(n, ARD_LENGTHSCALES)(tensor(POINTS_2D)).to_dense() for n in ARD_KERNELS},
            "gpr": {name: gpr(name) for name in names},
            "sgpr": {place: sgpr(Z) for place, Z in data["Z"].items()},
            "svgp": {w: {name: svgp(name, white) for name in likelihoods} for w, white in both.items()},
        }


# ---- the driver ------------------------------------------------------------------------------------------------------

VALUES = {"gpflow": gpflow_values, "gpytorch": gpytorch_values}


def plain(tree):
    """A tree of arrays of any library as lists and floats; columns (N, 1) become (N,) and (1,) becomes a number."""
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    if isinstance(tree, str):
        return tree
    array = np.asarray(tree, dtype=float)
    return (array[..., 0] if array.ndim and array.shape[-1] == 1 else array).tolist()


def difference(a, b) -> dict | float:
    """Largest |a - b| / max(1, |b|) of every quantity that both trees have."""
    if isinstance(a, dict):
        return {key: difference(a[key], b[key]) for key in a if key in b}
    a, b = np.asarray(a), np.asarray(b)
    return float(np.max(np.abs(a - b) / np.maximum(1.0, np.abs(b))))


def leaves(tree, path=()):
    """The (path, value) pairs of a tree of numbers."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    else:
        yield "/".join(path), tree


def ask(library: str, jitter: float) -> dict | None:
    """The values of a library, computed in its own environment."""
    python = python_of(library)
    if python is None:
        print(f"{library}: not installed, skipped (benchmarks/setup_peers.py installs it)", file=sys.stderr)
        return None
    command = [str(python), __file__, "--library", library, "--jitter", str(jitter)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    return json.loads(answer.splitlines()[-1])


def main() -> None:
    data = problem()
    result = {
        "source": "Snelson & Ghahramani's one-dimensional data, from GPflow's repository (GPflow/GPflow, "
        "doc/sphinx/notebooks/theory/data/snelson_*.dat), Apache-2.0. Numbers by benchmarks/reference_values.py.",
        "settings": {
            "dtype": "float64", "noise": NOISE, "variance": VARIANCE, "lengthscale": LENGTHSCALE, "jitter": JITTER,
            "student_t": STUDENT_T, "quadrature_points": 20, "mean": "zero", "sparse and SVGP kernel": "RBF",
        },
        "kernels": KERNELS,
        "points": POINTS.tolist(),
        "points_ard": POINTS_2D.tolist(),
        "ard_lengthscales": ARD_LENGTHSCALES,
        "definitions": {
            "X, X_new, Z": "one-dimensional inputs, written without their second axis",
            "y.binary": "y > 0", "y.count": "round(exp(y))", "X_new": "X_test[::50]", "y_new.real": "sin(X_new)",
            "Z.subset": "X[::10], SGPR only: Kuu has condition number 5e13, see sensitivity for the digits that hold",
            "Z.grid": "linspace(0, 6, 12), SGPR, SVGP and natural gradients: condition number 7e2",
            "q": variational_parameters.__doc__,
            "agreement": "largest |gpytorch - gpflow| / max(1, |gpflow|) of every quantity",
            "sensitivity": "the same between jitter and 10 jitter within a library",
        },
        "conventions": CONVENTIONS,
        "data": plain(data),
    }  # fmt: skip
    for library in VALUES:
        values = ask(library, JITTER)
        if values is not None:
            shifted = ask(library, 10 * JITTER)
            versions = {"version": values.pop("version")}
            shifted.pop("version")
            result[library] = versions | values
            result.setdefault("sensitivity", {})[library] = difference(shifted, values)
    if "gpflow" in result and "gpytorch" in result:
        result["agreement"] = difference(
            {key: value for key, value in result["gpytorch"].items() if key != "version"}, result["gpflow"]
        )
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(result) + "\n")
    for key in ("agreement", "sensitivity"):
        print(f"{key}, where worse than 1e-8:")
        print("\n".join(f"  {path}: {value:.1e}" for path, value in leaves(result.get(key, {})) if not value < 1e-8))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=VALUES)
    parser.add_argument("--jitter", type=float, default=JITTER)
    arguments = parser.parse_args()
    if arguments.library:
        from importlib.metadata import version

        values = VALUES[arguments.library](problem(), arguments.jitter)
        print(json.dumps({"version": version(arguments.library)} | plain(values)))
    else:
        main()
