"""Writes sparse_regression.json: the best q(u) and the collapsed bound in 100-digit arithmetic, by python-flint.

    python tests/reference/sparse_regression.py > tests/reference/sparse_regression.json

Kuu is nearly singular: half of the inducing points are 1e-7 from the other half. Its jitter is a part of the model, as in
mercer: u is f at the inducing points, seen with noise of variance 1e-10. The kernel is RBF with variance 1.
"""

import json
import random

from flint import arb, arb_mat, ctx

ctx.dps = 100
LENGTHSCALE, JITTER, NOISES = 0.9, 1e-10, [1e-8, 1e-6, 1e-4, 1e-2, 1.0]


def kernel(A, B):
    """exp(-|a - b|^2 / 2 l^2) for all pairs."""

    def entry(a, b):
        squares = sum(((arb(x) - arb(y)) ** 2 for x, y in zip(a, b, strict=True)), arb(0))
        return (-squares / (2 * arb(LENGTHSCALE) ** 2)).exp()

    return arb_mat([[entry(a, b) for b in B] for a in A])


def identity(size):
    return arb_mat([[int(i == j) for j in range(size)] for i in range(size)])


def column_products(A, B):
    """The diagonal of A^T B."""
    return [sum((A[m, n] * B[m, n] for m in range(A.nrows())), arb(0)) for n in range(A.ncols())]


def main():
    generator = random.Random(0)
    X = [[generator.uniform(-2, 2) for _ in range(2)] for _ in range(60)]
    Z = X[:8] + [[x + 1e-7 * generator.gauss(0, 1) for x in row] for row in X[:8]]
    new = [[generator.uniform(-2, 2) for _ in range(2)] for _ in range(6)]
    Y = [[row[0] * row[1] + generator.gauss(0, 0.1), row[0] - row[1] ** 2] for row in X]
    Kuu, Kuf, Kun = kernel(Z, Z) + arb(JITTER) * identity(len(Z)), kernel(Z, X), kernel(Z, new)
    y = arb_mat([[arb(value) for value in row] for row in Y])
    squares = sum(column_products(y, y), arb(0))
    slack = [1 - q for q in column_products(Kuf, Kuu.solve(Kuf))]
    own_slack = [1 - q for q in column_products(Kun, Kuu.solve(Kun))]
    mean_slack = sum(slack, arb(0)) / len(X)

    def predicted(noise):
        """Mean and variance at new inputs, with Sigma = Kuu + Kuf Kfu / noise."""
        Sigma = Kuu + Kuf * Kuf.transpose() * (1 / noise)
        mean = Kun.transpose() * Sigma.solve(Kuf * y) * (1 / noise)
        reduced = column_products(Kun, Sigma.solve(Kun))
        variance = [float((s + r).mid()) for s, r in zip(own_slack, reduced, strict=True)]
        return {"mean": [[float(mean[i, p].mid()) for p in range(2)] for i in range(len(new))], "variance": variance}

    def bound(noise):
        Sigma = Kuu + Kuf * Kuf.transpose() * (1 / noise)
        Ky = Kuf * y
        explained = sum(column_products(Ky, Sigma.solve(Ky)), arb(0)) / noise**2
        log_det = Sigma.det().log() - Kuu.det().log() + len(X) * (2 * arb.pi() * noise).log()
        return float((-(2 * log_det + squares / noise - explained + 2 * len(X) * mean_slack / noise) / 2).mid())

    cases = [
        {"noise": s, "collapsed": predicted(arb(s)), "bound": bound(arb(s)), "raised": predicted(arb(s) + mean_slack)}
        for s in NOISES
    ]
    data = {"X": X, "Z": Z, "Y": Y, "new": new, "lengthscale": LENGTHSCALE, "cases": cases}
    print(json.dumps(data, indent=1))


main()
