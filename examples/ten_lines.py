"""The picture of the ten lines in README.md, drawn from these lines: `python examples/ten_lines.py`."""

import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Runs the first Python block of README.md and draws what it predicts."""
    source = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    lines: dict = {}
    exec(source.group(1), lines)
    mean, deviation = np.asarray(lines["mean"])[:, 0], np.sqrt(np.asarray(lines["variance"]))[:, 0]
    grid = np.linspace(-1.0, 7.0, 200)
    figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
    axes.plot(lines["X"], lines["Y"], ".", color="0.6", markersize=3)
    axes.fill_between(grid, mean - 2.0 * deviation, mean + 2.0 * deviation, alpha=0.25, linewidth=0)
    axes.plot(grid, mean)
    axes.set(xlabel="x", ylabel="y", xlim=(-1.0, 7.0))
    figure.savefig(ROOT / "docs" / "images" / "ten-lines.png", dpi=110)


if __name__ == "__main__":
    main()
