"""What every worker shares: the loop that answers the harness, and the problem of a case.

A worker file defines `setup(case)`, which builds the model of a case and returns a callable `run(k)` that does k steps
and returns when they are done, and ends with `serve(setup)`. The callable may carry two attributes: `value`, a number
that must agree between libraries, and `note`, a word on how it runs.
"""

import json
import os
import sys
import time
import traceback

import numpy as np


def serve(setup) -> None:
    """Answer JSON lines: {"command": "setup", "case": ...}, {"command": "repeat", "k": ...}, {"command": "close"}.

    Only answers go to the real stdout; whatever a library prints goes to stderr.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run = None
    for line in sys.stdin:
        message = json.loads(line)
        try:
            if message["command"] == "setup":
                run = None  # frees the model of the last case
                run = setup(message["case"])
                value = getattr(run, "value", None)
                answer = {"note": getattr(run, "note", ""), "value": None if value is None else float(value)}
            elif message["command"] == "repeat":
                start = time.perf_counter()
                run(message["k"])
                answer = {"seconds": (time.perf_counter() - start) / message["k"]}
            else:
                answer = {}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
        if message["command"] == "close":
            return


class Run:
    """A callable run(k) with its value and its note."""

    def __init__(self, run, value=None, note=""):
        self.run, self.value, self.note = run, value, note

    def __call__(self, k: int) -> None:
        self.run(k)


def fastest(runs: dict, value=None) -> Run:
    """The fastest of several ways to do the same, by the best of four interleaved trials; its name becomes the note.

    A way that fails is left out, as long as another one works.
    """

    def seconds(run, k):
        start = time.perf_counter()
        run(k)
        return (time.perf_counter() - start) / k

    steps, failed = {}, {}
    for name, run in runs.items():
        try:
            run(2), run(1)  # twice: a compiler may see other types in what the first call returns
        except Exception as error:
            failed[name] = error
            continue
        steps[name] = int(np.clip(0.2 / seconds(run, 2), 1, 200))
    if not steps:
        raise next(iter(failed.values()))
    trials = [{name: seconds(runs[name], k) for name, k in steps.items()} for _ in range(4)]
    best = {name: min(trial[name] for trial in trials) for name in steps}
    winner = min(best, key=best.get)
    others = "".join(f"; {name} takes {best[name] / best[winner]:.2f} times as long" for name in best if name != winner)
    others += "".join(f"; {name} fails ({type(error).__name__})" for name, error in failed.items())
    return Run(runs[winner], value, f"{winner}{others}")


def problem(case: dict) -> dict:
    """Data, initial parameters and batches of an SVGP case with M, and B or P: N = 20000 points in D = 8 dimensions.

    X ~ N(0, 1), y = sin(x_1) + cos(x_2 x_3) + 0.1 noise, Z = X[:M]; lengthscales sqrt(D), variance 1, noise variance
    0.1; q(v) = N(0, I) for training. For prediction q_mu_i = sin(i) and q_sqrt = 0.5 I + 0.1 tril cos(i + 2j) / M.
    """
    N, D, M = 20_000, 8, case["M"]
    random = np.random.RandomState(0)
    X = random.randn(N, D)
    y = np.sin(X[:, 0]) + np.cos(X[:, 1] * X[:, 2]) + 0.1 * random.randn(N)
    result = {
        "N": N, "D": D, "M": M, "X": X, "y": y[:, None], "Z": X[:M].copy(),
        "lengthscales": np.full(D, D**0.5), "variance": 1.0, "noise": 0.1,
        "q_mu": np.zeros((M, 1)), "q_sqrt": np.eye(M),
    }  # fmt: skip
    if case["task"] == "svgp_step":
        B = case["B"]
        slices = [slice(i * B, (i + 1) * B) for i in range(N // B)]
        result["X_batches"] = np.stack([X[s] for s in slices])
        result["y_batches"] = np.stack([result["y"][s] for s in slices])
    else:
        i, j = np.arange(M)[:, None], np.arange(M)[None, :]
        result["q_mu"] = np.sin(i)
        result["q_sqrt"] = 0.5 * np.eye(M) + 0.1 * np.tril(np.cos(i + 2 * j)) / M
        result["X_new"] = random.randn(case["P"], D)
    dtype = case.get("dtype", "float64")
    return {k: v.astype(dtype) if isinstance(v, np.ndarray) else v for k, v in result.items()}


def multioutput_problem(case: dict) -> dict:
    """Data and initial parameters of an SVGP case with L latent functions and P outputs: N = 20000 points in 4 dimensions.

    X ~ N(0, 1), Y = sin(X A) W^T + 0.1 noise, Z = X[:M]; lengthscales 2, variance 1, noise variance 0.1; q(v) = N(0, I).
    """
    N, D, M, L, P, B = 20_000, 4, case["M"], case["L"], case["P"], case["B"]
    random = np.random.RandomState(0)
    X = random.randn(N, D)
    W = random.randn(P, L)
    Y = np.sin(X @ random.randn(D, L)) @ W.T + 0.1 * random.randn(N, P)
    slices = [slice(i * B, (i + 1) * B) for i in range(N // B)]
    batches = {"X_batches": np.stack([X[s] for s in slices]), "y_batches": np.stack([Y[s] for s in slices])}
    return case | batches | {"N": N, "X": X, "y": Y, "Z": X[:M].copy(), "W": W, "lengthscale": 2.0, "noise": 0.1}


def vish_problem(case: dict) -> dict:
    """Data and batches of a case with spherical harmonics of degrees 0 to levels - 1, 8 columns and a bias: N = 98,304 rows.

    X ~ N(0, 1), y = sin(x_1) + cos(x_2 x_3) + 0.1 noise. The kernel is an arc-cosine of two layers, all of its variances 1;
    noise variance 0.5; q(v) = N(0, I).
    """
    N, D, B = 98_304, 8, case["B"]
    random = np.random.RandomState(0)
    X = random.randn(N, D)
    y = np.sin(X[:, :1]) + np.cos(X[:, 1:2] * X[:, 2:3]) + 0.1 * random.randn(N, 1)
    batches = {"X_batches": X.reshape(-1, B, D), "y_batches": y.reshape(-1, B, 1)}
    return case | batches | {"N": N, "D": D, "X": X, "y": y, "noise": 0.5}


def deep_problem(case: dict) -> dict:
    """Data and batches of a deep case with so many layers, M inducing points in each and hidden layers as wide as the inputs.

    As `problem`; a kernel is shared by the outputs of a layer. Hidden layers have the identity as their mean, kernels of variance
    0.1 and q(v) = N(0, 1e-10 I). With P in the place of B, predictions at P new inputs.
    """
    task = "svgp_step" if "B" in case else "predict"
    p = problem(case | {"task": task})
    i, j = np.arange(p["M"])[:, None], np.arange(p["D"])[None, :]
    p["hidden_mu"] = np.zeros((p["M"], p["D"])) if "B" in case else 0.1 * np.sin(i + j)
    return case | {k: v.astype(p["X"].dtype) if isinstance(v, np.ndarray) else v for k, v in p.items()}
