#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what divides one GPT among ranks: layers (tp), sequences (sp, cp), or the list of layers (pp).

Peers over Gloo, on CPUs with one thread for each rank, with the same model, data and optimizer: torch's
parallelize_module, DeepSpeed's DistributedAttention, torch's and DeepSpeed's pipelines. torch's context parallelism has
no operator for CPUs. The step is the median of a run's updates. All print the same loss, else the bench fails. One
process that computes the whole model shows what there is to divide. Prints a table for each dimension and writes all
figures to build/bench/mesh.json.

`bubble` measures what part of a step a stage of our pipeline waits. It trains with 4, 8 and 16 micro-batches of one size. A
micro-batch takes (T16 - T4) / 12, where Tm is the time of a step with m of them, without the optimizer. The bubble is
1 - m * that / Tm.
"""
import statistics
import sys

from peers import ROOT
from rounds import Bench, Program, json_lines, parser_of
from tables import print_table

ALONE = "one process alone"
SCRIPT = str(ROOT / "bench/mesh_peers.py")
PEERS = {
    "tp": {"torch's parallelize_module": "torch"},
    "sp": {"lockstep, ring (cp)": "lockstep-cp", "DeepSpeed's DistributedAttention": "deepspeed"},
    "pp": {"torch's pipelining": "torch", "DeepSpeed's pipeline": "deepspeed"},
}


def parse_arguments():
    parser = parser_of(__doc__)
    parser.add_argument("--dimensions", default="tp,sp,pp,bubble", help="those to measure (default tp,sp,pp,bubble)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks that divide the model (default 2)")
    parser.add_argument("--steps", type=int, default=12, help="updates of a run (default 12)")
    parser.add_argument("--width", type=int, default=384, help="width of the model (default 384: 12 million parameters)")
    parser.add_argument("--micro-batches", type=int, default=4, help="of a pipeline (default 4)")
    options = parser.parse_args()
    options.dimensions = options.dimensions.split(",")
    if unknown := sorted(set(options.dimensions) - {*PEERS, "bubble"}):
        parser.error(f"--dimensions: unknown {', '.join(unknown)}; expected some of {', '.join(PEERS)}, bubble")
    return options


def command_of(options, dimension):
    """Returns the trainer's command for what the options say."""
    what = [SCRIPT, "--dimension", dimension]
    for name in ("steps", "width", "micro_batches"):
        what += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    return what


def own_program(bench, what):
    python = str(bench.python)
    own = {"PYTHONPATH": str(bench.package), "PYTHONDONTWRITEBYTECODE": "", "LOCKSTEP_PYTHON": python}
    launch = [str(bench.options.bin / "lockstep"), "launch", "-n", str(bench.options.ranks)]
    return Program([*launch, *what, "--by", "lockstep"], environment=own)


def programs_of(bench, dimension):
    """Returns {name: program}; ours first."""
    options, python, what = bench.options, str(bench.python), command_of(bench.options, dimension)
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks)]
    programs = {"lockstep": own_program(bench, what)}
    for name, by in PEERS[dimension].items():
        if by == "lockstep-cp":
            programs[name] = own_program(bench, [*what, "--ring"])
        else:
            programs[name] = Program([*torchrun, *what, "--by", by], peer=True)
    programs[ALONE] = Program([python, *what, "--by", "nobody"], peer=True, environment={"OMP_NUM_THREADS": "1"})
    return programs


def measure(bench, dimension):
    """Returns the figures of a dimension: {name: [ms of each round]}."""
    programs, losses = programs_of(bench, dimension), {}

    def figures(name):
        (line,) = json_lines(bench.run(name, programs[name]).output)
        losses[name] = line["loss"]
        return {dimension: line["ms"]}

    values = bench.measure(dimension, programs, figures)
    if max(losses.values()) - min(losses.values()) > 1.5e-3:
        sys.exit(f"mesh: the losses with {dimension} differ: {losses}; expected equal ones")
    return values


def measure_bubble(bench):
    """Prints the part of its time in which a stage waits, and returns the figures: {name: [ms of each round]}."""
    what, rows = command_of(bench.options, "pp"), 2
    counts = (4, 8, 16)
    programs = {
        f"{count} micro-batches": own_program(bench, [*what, "--micro-batches", str(count), "--rows", str(rows * count)])
        for count in counts
    }

    def figures(name):
        (line,) = json_lines(bench.run(name, programs[name]).output)
        return {"bubble": line["ms_without_optimizer"]}

    values = bench.measure("bubble", programs, figures)
    print_table("ms a step without the optimizer", values["bubble"])
    times = [statistics.median(values["bubble"][name]) for name in programs]
    of_one = (times[-1] - times[0]) / (counts[-1] - counts[0])
    stages = bench.options.ranks
    for count, time in zip(counts, times, strict=True):
        bubble, expected = 1 - count * of_one / time, (stages - 1) / (count + stages - 1)
        print(f"{count} micro-batches: bubble {bubble:.1%}; (p - 1) / (m + p - 1) is {expected:.1%}")
    return values


def main():
    options = parse_arguments()
    bench = Bench("mesh", options)
    values = {}
    for dimension in options.dimensions:
        if dimension == "bubble":
            values |= measure_bubble(bench)
            continue
        values |= measure(bench, dimension)
        print_table(f"ms a step with {dimension}", values[dimension])
    bench.finish(values, ranks=options.ranks, steps=options.steps, width=options.width, micro_batches=options.micro_batches)


if __name__ == "__main__":
    main()
