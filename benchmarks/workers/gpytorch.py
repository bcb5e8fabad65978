"""GPyTorch: the training loop of its SVGP tutorial in float64; prediction in eval mode with its caches filled."""

import gpytorch
import torch

from workers.common import Run, deep_problem, fastest, problem, serve

torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")


def tensor(array) -> torch.Tensor:
    """An array on the device."""
    return torch.as_tensor(array, device=torch.get_default_device())


def wait() -> None:
    """Until the device has done what it was asked."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class SVGP(gpytorch.models.ApproximateGP):
    """The whitened SVGP of a problem."""

    def __init__(self, p: dict):
        distribution = gpytorch.variational.CholeskyVariationalDistribution(p["M"])
        strategy = gpytorch.variational.VariationalStrategy(
            self, tensor(p["Z"]), distribution, learn_inducing_locations=True
        )
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=p["D"]))
        self.covar_module.outputscale = p["variance"]
        self.covar_module.base_kernel.lengthscale = tensor(p["lengthscales"])
        distribution.variational_mean.data = tensor(p["q_mu"][:, 0]).clone()
        distribution.chol_variational_covar.data = tensor(p["q_sqrt"]).clone()
        strategy.variational_params_initialized.fill_(1)

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def svgp_step(p: dict) -> Run:
    """Minibatch ELBO, gradients and Adam."""
    batches = list(zip(tensor(p["X_batches"]), tensor(p["y_batches"][..., 0]), strict=True))
    model, likelihood = SVGP(p).train(), gpytorch.likelihoods.GaussianLikelihood().train()
    likelihood.noise = p["noise"]
    elbo = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=p["N"])
    adam = torch.optim.Adam([{"params": model.parameters()}, {"params": likelihood.parameters()}], lr=0.01)
    value = p["N"] * elbo(model(batches[0][0]), batches[0][1]).item()

    def run(k):
        for i in range(k):
            X, y = batches[i % len(batches)]
            adam.zero_grad()
            loss = -elbo(model(X), y)
            loss.backward()
            adam.step()
        wait()

    return Run(run, value)


def predict_cached(p: dict) -> Run:
    """Mean and variance of f, at all points at once and in the tutorial's batches of 1024."""
    model, X = SVGP(p).eval(), tensor(p["X_new"])

    def predict(batch):
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            parts = [model(x) for x in X.split(batch)]
            return torch.cat([f.mean for f in parts]), torch.cat([f.variance for f in parts])

    def calls(batch):
        def run(k):
            for _ in range(k):
                predict(batch)
            wait()

        return run

    mean, variance = predict(1024)
    return fastest({"batches of 1024": calls(1024), "one batch": calls(len(X))}, (mean + variance).sum().item())


class Layer(gpytorch.models.deep_gps.DeepGPLayer):
    """A layer of a deep problem; a kernel and inducing points for each output, as in the tutorial, or shared by them."""

    def __init__(self, p: dict, hidden: bool, shared: bool):
        outputs = p["D"] if hidden else None
        batch = torch.Size([p["D"]] if hidden else [])
        own = torch.Size([]) if shared else batch
        distribution = gpytorch.variational.CholeskyVariationalDistribution(p["M"], batch_shape=batch)
        Z = tensor(p["Z"]).repeat(*own, 1, 1)
        strategy = gpytorch.variational.VariationalStrategy(self, Z, distribution, learn_inducing_locations=True)
        super().__init__(strategy, p["D"], outputs)
        self.hidden = hidden
        self.covar_module = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.RBFKernel(ard_num_dims=p["D"], batch_shape=own), batch_shape=own
        )
        self.covar_module.outputscale = 0.1 if hidden else 1.0
        self.covar_module.base_kernel.lengthscale = tensor(p["lengthscales"])
        root = 1e-5 * torch.eye(p["M"]).repeat(*batch, 1, 1) if hidden else tensor(p["q_sqrt"])
        distribution.chol_variational_covar.data = root.clone()
        distribution.variational_mean.data = torch.zeros(*batch, p["M"])
        strategy.variational_params_initialized.fill_(1)

    def forward(self, x):
        # The identity: output number i is column i of the inputs, which come once for each output.
        mean = torch.diagonal(x, dim1=-3, dim2=-1).mT if self.hidden else torch.zeros_like(x[..., 0])
        return gpytorch.distributions.MultivariateNormal(mean, self.covar_module(x))


class DeepGP(gpytorch.models.deep_gps.DeepGP):
    """The layers of a deep problem, one after another."""

    def __init__(self, p: dict, shared: bool):
        super().__init__()
        layers = [Layer(p, hidden, shared) for hidden in [True] * (p["layers"] - 1) + [False]]
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def deep_step(p: dict) -> Run:
    """Minibatch ELBO with one draw of each hidden layer, gradients and Adam."""
    batches = list(zip(tensor(p["X_batches"]), tensor(p["y_batches"][..., 0]), strict=True))

    def steps(shared):
        model, likelihood = DeepGP(p, shared).train(), gpytorch.likelihoods.GaussianLikelihood().train()
        likelihood.noise = p["noise"]
        bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=p["N"])
        elbo = gpytorch.mlls.DeepApproximateMLL(bound)
        adam = torch.optim.Adam([{"params": model.parameters()}, {"params": likelihood.parameters()}], lr=0.01)

        def run(k):
            for i in range(k):
                X, y = batches[i % len(batches)]
                adam.zero_grad()
                with gpytorch.settings.num_likelihood_samples(1):
                    loss = -elbo(model(X), y)
                loss.backward()
                adam.step()
            wait()

        return run

    return fastest({"shared by outputs": steps(True), "as in the tutorial": steps(False)})


def setup(case: dict) -> Run:
    """A case, in its dtype."""
    torch.set_default_dtype(getattr(torch, case.get("dtype", "float64")))
    if case["task"] == "deep_step":
        return deep_step(deep_problem(case))
    return {"svgp_step": svgp_step, "predict_cached": predict_cached}[case["task"]](problem(case))


if __name__ == "__main__":
    serve(setup)
