"""`mercer fit` with no options beside what people use today, on the splits of uci_std: `python benchmarks/front_door.py`.

Each peer is used as its documentation shows: scikit-learn's GaussianProcessRegressor with a scaled RBF kernel with one
lengthscale per column and white noise, on at most 2000 rows; its HistGradientBoostingRegressor, with the spread of 5-fold
residuals as the standard deviation; and GPyTorch's SVGP as in its tutorial (500 inducing points, RBF kernel, Adam with learning
rate 0.01, 4 passes in batches of 1024), on standardised data. mercer is run as a command, on a csv file. Scores are in the units
of the target. Data: `MERCER_DATA`, else ../shared/data beside the repository. GPyTorch is that of `setup_peers.py`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy import stats

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("MERCER_DATA", ROOT.parent / "shared" / "data"))
SMALL = ["yacht", "bostonHousing", "energy", "concrete", "wine-quality-red"]
LARGE = ["kin8nm", "power-plant", "naval-propulsion-plant", "protein-tertiary-structure"]
Z90 = stats.norm.ppf(0.95)


def split(name: str, number: int):
    """X, y to train on and X, y held out."""
    data = np.load(DATA / "uci_std" / f"{name}.npz")
    train, test = data["train_idx"][number], data["test_idx"][number]
    X, y = data["X"].astype(float), data["y"].astype(float).ravel()
    return X[train], y[train], X[test], y[test]


def scored(y, mean, deviation, seconds, density=None, lower=None, upper=None):
    """RMSE, mean log-likelihood, share in the 90 % interval, seconds."""
    density = stats.norm.logpdf(y, mean, deviation) if density is None else density
    lower = mean - Z90 * deviation if lower is None else lower
    upper = mean + Z90 * deviation if upper is None else upper
    return np.sqrt(np.mean((y - mean) ** 2)), np.mean(density), np.mean((lower <= y) & (y <= upper)), seconds


def mercer(X, y, X_test, y_test):
    """The command on files; its log-likelihood is that of its own predictive density."""
    import mercer as mc

    with tempfile.TemporaryDirectory() as folder:
        names = [f"x{d}" for d in range(X.shape[1])] + ["y"]
        for file, columns in (("train.csv", (X, y)), ("test.csv", (X_test, y_test))):
            table = np.column_stack(columns)
            np.savetxt(Path(folder, file), table, delimiter=",", header=",".join(names), comments="", fmt="%.17g")
        begin = time.perf_counter()
        command = [sys.executable, "-m", "mercer.cli"]
        subprocess.run([*command, "fit", "train.csv", "--target", "y", "--quiet"], cwd=folder, check=True)
        seconds = time.perf_counter() - begin
        subprocess.run(
            [*command, "predict", "train.mercer", "test.csv", "--out", "p.csv", "--quiet"], cwd=folder, check=True
        )
        predicted = np.genfromtxt(Path(folder, "p.csv"), delimiter=",", names=True)
        model = mc.load(Path(folder, "train.mercer"))
        table = mc.io.tables.read_table(Path(folder, "test.csv"))
        density = model.predictor.log_density(model.columns.encode(table), y_test[:, None])
    yield (
        "mercer",
        scored(y_test, predicted["mean"], predicted["std"], seconds, density, predicted["lower"], predicted["upper"]),
    )
    yield "mercer, as a normal", scored(y_test, predicted["mean"], predicted["std"], seconds)


def sklearn_gp(X, y, X_test, y_test):
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows = np.random.default_rng(0).permutation(len(X))[:2000]
    kernel = ConstantKernel() * RBF(np.ones(X.shape[1])) + WhiteKernel()
    begin = time.perf_counter()
    model = make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True)).fit(X[rows], y[rows])
    mean, deviation = model.predict(X_test, return_std=True)
    yield "sklearn GP", scored(y_test, mean, deviation, time.perf_counter() - begin)


def boosting(X, y, X_test, y_test):
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.model_selection import KFold, cross_val_predict

    begin = time.perf_counter()
    model = HistGradientBoostingRegressor(random_state=0)
    deviation = np.std(y - cross_val_predict(model, X, y, cv=KFold(5, shuffle=True, random_state=0)))
    mean = model.fit(X, y).predict(X_test)
    yield "boosting", scored(y_test, mean, np.full(len(mean), deviation), time.perf_counter() - begin)


GPYTORCH = """
import sys, time, numpy as np, torch, gpytorch
torch.manual_seed(0); data = np.load(sys.argv[1]); X, y, T = (torch.tensor(data[n]).float() for n in ("X", "y", "T"))
class Model(gpytorch.models.ApproximateGP):
    def __init__(self, Z):
        q = gpytorch.variational.CholeskyVariationalDistribution(Z.size(0))
        super().__init__(gpytorch.variational.VariationalStrategy(self, Z, q, learn_inducing_locations=True))
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    def forward(self, x): return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))
begin = time.perf_counter()
model, likelihood = Model(X[:500].clone()), gpytorch.likelihoods.GaussianLikelihood()
model.train(); likelihood.train()
optimiser = torch.optim.Adam([{"params": model.parameters()}, {"params": likelihood.parameters()}], lr=0.01)
mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, y), batch_size=1024, shuffle=True)
for epoch in range(4):
    for a, b in loader:
        optimiser.zero_grad(); loss = -mll(model(a), b); loss.backward(); optimiser.step()
model.eval(); likelihood.eval()
with torch.no_grad(): p = likelihood(model(T))
np.savez(sys.argv[2], mean=p.mean.numpy(), deviation=p.stddev.numpy(), seconds=time.perf_counter() - begin)
"""


def gpytorch(X, y, X_test, y_test):
    python = Path(os.environ.get("MERCER_PEERS", ROOT / ".peers")) / "gpytorch" / "bin" / "python"
    if not python.exists():
        return
    centre, scale, shift, size = X.mean(0), X.std(0) + 1e-12, y.mean(), y.std()
    with tempfile.TemporaryDirectory() as folder:
        file, result = Path(folder, "data.npz"), Path(folder, "result.npz")
        np.savez(file, X=(X - centre) / scale, y=(y - shift) / size, T=(X_test - centre) / scale)
        subprocess.run([python, "-W", "ignore", "-c", GPYTORCH, file, result], check=True)
        found = np.load(result)
        mean, deviation = found["mean"] * size + shift, found["deviation"] * size
        yield "GPyTorch SVGP", scored(y_test, mean, deviation, float(found["seconds"]))


def main() -> None:
    """Prints one table: for each set and method means (and standard deviations) over splits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="*", default=SMALL + LARGE)
    parser.add_argument("--splits", type=int, default=1, help="how many of the splits to run")
    arguments = parser.parse_args()
    print("| set | method | RMSE | log-likelihood | in the 90 % interval | seconds |\n|---|---|---|---|---|---|")
    for name in arguments.sets:
        found: dict[str, list] = {}
        for number in range(arguments.splits):
            data = split(name, number)
            for method in (mercer, sklearn_gp, boosting, gpytorch):
                for label, row in method(*data):
                    found.setdefault(label, []).append(row)
        for label, rows in found.items():
            mean, spread = np.mean(rows, axis=0), np.std(rows, axis=0)
            both = [f"{m:.4g} ({s:.2g})" if len(rows) > 1 else f"{m:.4g}" for m, s in zip(mean, spread, strict=True)]
            print(f"| {name} | {label} | {both[0]} | {both[1]} | {100 * mean[2]:.1f} % | {mean[3]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
