"""The commands `mercer run` and `mercer schema`."""

import json
import signal
import subprocess
import sys
import time

import pytest
from test_run import CURVE


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "curve.yaml"
    path.write_text(CURVE)
    return path


def test_run(command, file, tmp_path):
    arguments = ("run", file, "stages.posterior.steps=10", "--out", tmp_path / "runs")
    code, out, err = command(*arguments)
    assert code == 0 and [line.partition(":")[0] for line in out.splitlines()] == ["train", "validation", "test"]
    assert "posterior: done in" in err and "written to" in err
    again = command(*arguments)
    assert again[:2] == (0, out) and again[2].startswith("it was there already")
    assert command(*arguments, "--quiet") == (0, out, "")


def test_mistakes_are_one_sentence(command, file, tmp_path):
    for arguments, said in (
        ((tmp_path / "none.yaml",), "cannot be read"),
        ((file, "sed=1"), "sed: unknown setting; did you mean 'seed'?"),
        (
            (file, "stages.prior.kernel.lengthscale=-1"),
            "line 5: stages.prior.kernel: RBF: lengthscale expects positive",
        ),
    ):
        code, out, err = command("run", *arguments, "--out", tmp_path / "runs")
        assert code == 1 and out == "" and said in err and err.startswith("mercer: ") and err.count("\n") == 1


def test_schema(command):
    code, out, _ = command("schema")
    assert code == 0 and "stages" in json.loads(out)["properties"]
    code, out, _ = command("schema", "--sweep")
    assert code == 0 and {"experiment", "grid", "zip", "list", "random"} <= set(json.loads(out)["properties"])


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on(file, tmp_path):
    arguments = [sys.executable, "-m", "mercer.cli", "run", str(file), "stages.posterior.steps=20000", "--out"]
    straight = subprocess.run([*arguments, str(tmp_path / "straight")], capture_output=True, text=True, check=True)
    arguments.append(str(tmp_path / "killed"))
    for _ in range(2):
        process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
        for line in process.stderr:
            if "posterior: step" in line:
                time.sleep(0.5)
                break
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stderr.close()
    last = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert last.stdout == straight.stdout and "prior: read" in last.stderr and "step 10," not in last.stderr
    scores = [next((tmp_path / name).glob("a-curve-*/scores.json")).read_bytes() for name in ("straight", "killed")]
    assert scores[0] == scores[1]
