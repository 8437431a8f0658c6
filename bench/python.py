#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the Python package: a training step, a job from launch to exit, and the import, against its peers.

Each rank has one thread. A step trains mlp, cnn or lm (see step.py) with AdamW on one resident batch: Lockstep by
Accelerate's calls ("lockstep") and by DeepSpeed's ("lockstep.deepspeed"), Accelerate, DeepSpeed, and PyTorch's
DistributedDataParallel. "Alone" is the limit: the same processes without communication. A job trains mlp for a few
steps, under `lockstep launch` or torchrun. The import is the time that a package adds to `import torch`. DeepSpeed runs
only if the peers' Python has it. All programs run in turn (rounds.py). Prints tables and writes all figures to
build/bench/python.json.
"""
import os
import subprocess

from peers import ROOT
from rounds import Bench, Program, parser_of
from step import STEPS, step_us
from tables import print_table

SCRIPT = str(ROOT / "bench/step_peers.py")
IMPORTS = {
    "lockstep": "lockstep",
    "lockstep.deepspeed": "lockstep.deepspeed",
    "Accelerate": "accelerate",
    "DeepSpeed": "deepspeed",
}


def parse_arguments():
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="processes of a run (default 2)")
    parser.add_argument("--no-deepspeed", action="store_true", help="omit DeepSpeed, which compiles at its first run")
    parser.add_argument("--models", nargs="+", choices=list(STEPS), default=list(STEPS))
    return parser.parse_args()


class Programs:
    """Makes the commands of all frameworks."""

    def __init__(self, bench):
        self.bench, self.ranks, self.python = bench, str(bench.options.ranks), str(bench.python)
        self.own = bench.launch_python(1, SCRIPT).environment
        subprocess.run([self.python, "-c", "import lockstep.deepspeed"], env={**os.environ, **self.own}, check=True)
        found = subprocess.run([self.python, "-c", "import deepspeed"], capture_output=True, check=False)
        self.has_deepspeed = found.returncode == 0 and not bench.options.no_deepspeed

    def ours(self, peer, *what):
        return self.bench.launch_python(self.ranks, SCRIPT, *what, "--peer", peer)

    def torchrun(self, peer, *what):
        launcher = [self.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", self.ranks]
        return Program(
            [*launcher, SCRIPT, *map(str, what), "--peer", peer], peer=True, environment={"DS_ACCELERATOR": "cpu"}
        )

    def accelerate(self, *what):
        # accelerate starts only one process with --cpu.
        launcher = [self.python, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", self.ranks]
        launcher += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
        return Program([*launcher, SCRIPT, *map(str, what), "--peer", "accelerate"], peer=True)

    def steps(self, model):
        """Returns {name: program} of a training step; ours first."""
        what = ("--model", model, "--steps", STEPS[model])
        programs = {
            "lockstep": self.ours("lockstep", *what),
            "lockstep.deepspeed": self.ours("lockstep_engine", *what),
            "alone": self.torchrun("alone", *what),
            "PyTorch DDP": self.torchrun("ddp", *what),
            "Accelerate": self.torchrun("accelerate", *what),
        }
        if self.has_deepspeed:
            programs["DeepSpeed"] = self.torchrun("deepspeed", *what)
        return programs

    def jobs(self):
        """Returns {name: program} of a short job; ours first."""
        what = ("--model", "mlp", "--steps", 10)
        programs = {
            "lockstep": self.ours("lockstep", *what),
            "PyTorch DDP": self.torchrun("ddp", *what),
            "Accelerate": self.torchrun("accelerate", *what),
            "Accelerate, by accelerate launch": self.accelerate(*what),
        }
        if self.has_deepspeed:
            programs["DeepSpeed"] = self.torchrun("deepspeed", *what)
        return programs

    def imports(self):
        """Returns {name: program} of imports after torch's, and of torch's alone."""
        names = {name: module for name, module in IMPORTS.items() if name != "DeepSpeed" or self.has_deepspeed}
        timed = "import time, torch; began = time.perf_counter(); import {}; print(1e3 * (time.perf_counter() - began))"
        programs = {
            name: Program([self.python, "-c", timed.format(module)], not module.startswith("lockstep"), self.own)
            for name, module in names.items()
        }
        alone = "import time; began = time.perf_counter(); import torch; print(1e3 * (time.perf_counter() - began))"
        return programs | {"torch alone": Program([self.python, "-c", alone], True)}


def main():
    options = parse_arguments()
    bench = Bench("python", options)
    programs = Programs(bench)
    values = {}
    for model in options.models:
        steps = programs.steps(model)
        values |= bench.measure(model, steps, lambda name, of=steps, row=model: {row: step_us(bench, name, of[name])})
        print_table(f"{model}: us a step", values[model])
    jobs = programs.jobs()
    values |= bench.measure("job", jobs, lambda name: {"job": bench.run(name, jobs[name]).seconds})
    print_table("s from launch to exit", values["job"])
    imports = programs.imports()
    last_number = lambda name: float(bench.run(name, imports[name]).output.split()[-1])  # noqa: E731
    values |= bench.measure("import", imports, lambda name: {"import": last_number(name)})
    print_table("ms of the import after torch's", values["import"])
    bench.finish(values, ranks=options.ranks, deepspeed=programs.has_deepspeed)


if __name__ == "__main__":
    main()
