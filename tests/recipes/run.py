#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of examples/recipes as the pages of docs/ show them, each in an empty folder.

Usage: run.py BUILD_FOLDER NAME. Environment for the Python programs: PYTHONPATH, LOCKSTEP_PYTHON."""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

RECIPES = Path(__file__).resolve().parent.parent.parent / "examples" / "recipes"
BUILD = Path(sys.argv[1]).resolve()
LOCKSTEP = BUILD / "bin" / "lockstep"


def run(command, folder):
    variables = os.environ | {"OMP_NUM_THREADS": "1", "LOCKSTEP_USE_CPU": "1", "XDG_CONFIG_HOME": str(folder)}
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=variables, capture_output=True, text=True, timeout=240, check=False
    )
    sys.stderr.write(done.stderr)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def output(name, *arguments, ranks=2, folder=None, options=()):
    """Returns the stdout of a recipe. ranks=0: without a launcher."""
    with tempfile.TemporaryDirectory() as empty:
        program = [RECIPES / name] if name.endswith(".py") else [BUILD / "test" / "recipes", name]
        launch = [LOCKSTEP, "launch", "-n", ranks, *options] if ranks else []
        return run([*launch, *program, *arguments], folder or empty)


def numbers(pattern, text):
    """Returns the numbers of the last match of `pattern`."""
    found = re.findall(pattern, text)
    assert found, f"expected {pattern!r}; got:\n{text}"
    return [float(number) for number in (found[-1] if isinstance(found[-1], tuple) else (found[-1],))]


def quickstart():
    for name in ("quickstart", "quickstart.py"):
        for ranks in (1, 2):
            assert numbers(r"epoch 5: (\d+) of 1000 points", output(name, ranks=ranks))[0] > 950


def mnist():
    assert numbers(r"(\d+) of 10000 test pictures", output("mnist", 1))[0] > 4000


def gan():
    texts = [output("gan", stage) for stage in (0, 1, 2, 3)]
    assert len(set(texts)) == 1, "ZeRO is bit-exact on two processes: " + "".join(texts)
    assert 0.7 < numbers(r"points: (.*)", texts[0])[0] < 1.3, texts[0]


def early_stopping():
    assert 1 < numbers(r"stopped after epoch (\d+)", output("early_stopping"))[0] < 1000


def seeds():
    text = output("seeds")
    weights, noise, samples = (line.split(":")[1].split() for line in text.splitlines())
    assert len(weights) == 2 and weights[0] == weights[1], text
    assert len(noise) == 2 and noise[0] != noise[1], text
    assert len(samples) == 8 and output("seeds", ranks=1).splitlines()[2] == text.splitlines()[2], text


def sweep():
    text = output("sweep", ranks=0)
    losses = {lr: float(loss) for lr, loss in re.findall(r"lr (.*): loss (.*)", text)}
    assert len(losses) == 3, text
    assert f"best: {min(losses, key=losses.get)}" in text, text


def lstm():
    with tempfile.TemporaryDirectory() as folder:
        unbroken = output("lstm", 3).splitlines()
        broken = output("lstm", 2, folder=folder).splitlines()
        resumed = output("lstm", 3, folder=folder, options=["--resume"]).splitlines()
    assert broken + resumed == unbroken, (broken, resumed, unbroken)
    first, last = (float(line.split()[-1]) for line in (unbroken[0], unbroken[-1]))
    assert last < 0.5 * first, unbroken


def evaluation():
    for ranks in (1, 3):
        right, total = numbers(r"(\d+) of (\d+) right", output("evaluation", ranks=ranks))
        assert total == 10000 and right > 6000


def experts():
    meshes = {1: "dp_replicate=1", 2: "ep=2", 4: "ep=2"}
    curves = [output("experts", ranks=ranks, options=("--mesh", mesh)) for ranks, mesh in meshes.items()]
    points = [[float(loss) for loss in re.findall(r"step \d+: (\S+)", curve)] for curve in curves]
    assert len(points[0]) == 3 and points[0][2] < 0.05 * points[0][0], curves
    for other in points[1:]:
        assert all(abs(a - b) < 1e-4 * a for a, b in zip(points[0], other, strict=True)), curves


def sync_batch_norm():
    one, two = (numbers(r"loss (.*)", output("sync_batch_norm", ranks=ranks))[0] for ranks in (1, 2))
    assert abs(one - two) < 1e-3, (one, two)


def own_dataset():
    right, total, _ = numbers(r"right (\d+) of (\d+), padding (\d+)", output("own_dataset"))
    assert total == 4096 and right > 0.9 * total


def simulation():
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
    for launch, ranks in ((mpirun, 3), (mpirun, 5), ([LOCKSTEP, "launch"], 4)):
        with tempfile.TemporaryDirectory() as folder:
            text = run([*launch, "-n", ranks, BUILD / "test" / "recipes", "simulation"], folder)
        assert text.count("trained") == 1, text
        trainers, simulators, loss = numbers(r"(\d+) processes trained with the samples of (\d+), loss (.*)", text)
        assert trainers == 2 and simulators == ranks - 2 and loss < 0.05, text


def stream():
    slope, samples = numbers(r"slope (.*) after (\d+) samples", output("stream"))
    assert samples == 10000 and abs(slope - 3) < 0.3


def torch_data():
    assert abs(numbers(r"slope (.*)", output("torch_data"))[0] - 2) < 0.3


def port():
    before = numbers(r"epoch 4: loss (.*)", output("port_before", ranks=0))[0]
    for ranks in (1, 2):
        after = numbers(r"epoch 4: loss (.*)", output("port_after", ranks=ranks))[0]
        assert abs(after - before) < 0.05, (before, after)


if __name__ == "__main__":
    globals()[sys.argv[2]]()
