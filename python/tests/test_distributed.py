# SPDX-License-Identifier: Apache-2.0
"""Tests of the backend "lockstep" of torch.distributed, with processes: results and faults, compared with Gloo's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from launch import finish_ranks, python_path, run_ranks

_FOLDER = Path(__file__).parent
# The model's ranks have the time that Gloo needs, too.
_SECONDS = 300


def _run(name: str, ranks: int, *arguments: object, **variables: str) -> list[str]:
    """Runs a file of this folder as ranks. Returns what each has printed."""
    return run_ranks(_program(name, arguments), ranks, _SECONDS, **variables)


def _program(name: str, arguments: tuple[object, ...]) -> str:
    path = str(_FOLDER / name)
    return f"""
import faulthandler, runpy, sys
faulthandler.dump_traceback_later({_SECONDS - 10}, exit=True)  # A hang shows its place.
sys.argv[:] = {[path, *map(str, arguments)]!r}
runpy.run_path({path!r}, run_name="__main__")
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_operations_give_gloos_results(ranks: int) -> None:
    for output in _run("distributed_operations.py", ranks):
        assert "compared 448 over shm\n" in output


def _may_set_host_name() -> bool:
    return subprocess.run(["unshare", "--uts", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not _may_set_host_name(), reason="needs root, for two host names on one machine")
def test_operations_of_two_hosts_with_two_ranks_give_gloos_results() -> None:
    """Ranks whose hosts have different names share no memory: the hosts' leading ranks use sockets."""
    on_hosts = """
import ctypes, os, socket
CLONE_NEWUTS = 0x04000000
assert ctypes.CDLL(None).unshare(CLONE_NEWUTS) == 0
socket.sethostname(f"host_{int(os.environ['RANK']) // 2}")
"""
    for output in run_ranks(on_hosts + _program("distributed_operations.py", ()), 4, _SECONDS):
        assert "compared 448 over shm+gloo\n" in output


@pytest.mark.parametrize("ranks", [2, 3])
def test_torchs_own_training_gives_gloos_results(ranks: int, tmp_path: Path) -> None:
    for output in _run("distributed_models.py", ranks, tmp_path):
        trained = output.splitlines()
        for name in ("DDP", "DDP, PowerSGD", "FSDP2", "DTensor", "subgroups", "checkpoint", "GPipe", "1F1B"):
            assert name in trained, output


@pytest.mark.parametrize(("ranks", "variables"), [(2, {}), (3, {}), (3, {"LOCKSTEP_COMM": "gloo"})])
def test_messages_groups_and_stores(ranks: int, variables: dict[str, str], tmp_path: Path) -> None:
    for output in _run("distributed_messages.py", ranks, tmp_path, **variables):
        assert output.endswith("done\n")


def test_operations_over_sockets_give_gloos_results() -> None:
    for output in _run("distributed_operations.py", 2, LOCKSTEP_COMM="gloo"):
        assert "compared 448 over gloo\n" in output


_FAULTS = (
    *("a_rank_dies", "a_rank_never_joins", "a_rank_is_late", "a_future_fails", "backward_fails", "ranks_differ"),
    *("a_root_refuses", "a_rank_refuses", "tags_differ", "two_threads"),
)


@pytest.mark.parametrize("fault", _FAULTS)
def test_a_fault_ends_every_rank_with_its_reason(fault: str, tmp_path: Path) -> None:
    outputs = finish_ranks(_program("distributed_faults.py", (fault, str(tmp_path))), 3, _SECONDS)
    for rank, (code, output) in enumerate(outputs):
        assert code == 0, f"process {rank} exited with {code}:\n{output}"
    assert f"{fault} as expected" in outputs[0][1]


def test_torchs_debug_mode(tmp_path: Path) -> None:
    for output in _run("distributed_faults.py", 2, "debug_detail", str(tmp_path), TORCH_DISTRIBUTED_DEBUG="DETAIL"):
        assert "debug_detail as expected" in output


def test_the_example_of_the_docs_trains() -> None:
    program = (_FOLDER.parents[1] / "examples/python/torch_ddp.py").read_text(encoding="utf-8")
    over_gloo = program.replace('group("lockstep")', 'group("gloo")')
    over_gloo = over_gloo.replace("dist.ReduceOp.AVG", "dist.ReduceOp.SUM").replace("{loss:", "{loss / 2:")
    ours, _ = run_ranks(program, 2, _SECONDS)
    gloos, _ = run_ranks(over_gloo, 2, _SECONDS)
    assert ours == gloos and ours.startswith("loss ")


def test_an_import_registers_the_backend_once() -> None:
    program = """
import lockstep, torch.distributed as dist
assert "lockstep" in dist.Backend.backend_list and dist.Backend.LOCKSTEP == "lockstep"
lockstep.distributed.register()
"""
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": python_path()})


def test_an_accelerator_provides_torch_distributed() -> None:
    program = """
        import sys
        import torch, torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data.distributed import DistributedSampler
        from lockstep import Accelerator

        accelerator = Accelerator(cpu=True, expect_prepared_loader=False)
        rank, world = accelerator.process_index, accelerator.num_processes
        assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (rank, world, "lockstep")
        assert list(DistributedSampler(range(6), shuffle=False)) == [*range(rank, 6, world)]
        value = torch.tensor([rank + 1.0])
        dist.all_reduce(value)
        assert value.item() == sum(range(1, world + 1))
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = accelerator.prepare(model, optimizer)
        for step in range(3):  # Calls of both take turns.
            accelerator.backward(model(torch.full((4, 2), rank + step + 1.0)).sum())
            optimizer.step()
            optimizer.zero_grad()
            every = [None] * world
            dist.all_gather_object(every, accelerator.unwrap_model(model).weight.tolist())
            assert every == [every[0]] * world
        if rank == world - 1:  # The others need take no part.
            store = dist.PrefixStore("own", dist.distributed_c10d._get_default_store())
            store.set("key", "value")
            assert store.get("key") == b"value" and store.add("count", 2) == 2 and store.check(["key"])
            assert store.compare_set("key", "value", "other") == b"other" and store.num_keys() >= 2
            assert store.delete_key("key") and not store.check(["key"])
            store.append("list", "a")
            store.multi_set(["list", "more"], ["b", "c"])
            assert store.multi_get(["list", "more"]) == [b"b", b"c"] and store.has_extended_api()
            store.wait(["more"])
            assert store.clone().get("more") == b"c"
        pair = dist.new_group([0, world - 1])
        if rank in (0, world - 1):
            dist.broadcast(value, 0, group=pair)
        over_sockets = dist.new_group(backend="gloo")
        dist.all_reduce(value, group=over_sockets)
        own = torch.nn.Linear(2, 1)
        DistributedDataParallel(own)(torch.ones(1, 2)).sum().backward()
        dist.barrier()
        if rank == world - 1:  # The last group: torch 2.15 counts it on this rank only, also for the names of later ones.
            assert dist.new_group([rank], use_local_synchronization=True).size() == 1
        accelerator.end_training()
        accelerator.state.destroy_process_group()
        assert not dist.is_initialized()
    """
    run_ranks(program, 3, 60)


def test_ddp_of_a_second_model_averages_while_the_accelerators_backward_continues() -> None:
    program = """
        import copy
        import torch, torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        from lockstep import Accelerator
        from lockstep.distributed.work import Work

        waits, wait = [], Work._wait_quietly
        Work._wait_quietly = lambda work: (waits.append(work), wait(work))
        accelerator = Accelerator(cpu=True, expect_prepared_loader=False)
        rank = accelerator.process_index
        own = torch.nn.Linear(2, 1)
        own, optimizer = accelerator.prepare(own, torch.optim.SGD(own.parameters(), lr=0.1))
        torch.manual_seed(0)
        layers = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(4)])
        expected = copy.deepcopy(layers)
        second = DistributedDataParallel(layers, bucket_cap_mb=1e-5)  # A bucket for each layer.
        inputs = torch.full((3, 2), rank + 1.0)
        accelerator.backward(own(inputs).sum() + second(inputs).square().sum())
        assert not waits, "a bucket waits for its all-reduce"
        expected(inputs).square().sum().backward()
        for parameter, other in zip(layers.parameters(), expected.parameters(), strict=True):
            dist.all_reduce(other.grad, dist.ReduceOp.AVG)
            torch.testing.assert_close(parameter.grad, other.grad)
        dist.all_reduce(torch.ones(1), async_op=True).get_future()  # The program's own.
        assert len(waits) == 1
        optimizer.step()
        accelerator.end_training()
    """
    run_ranks(program, 2, 60)


def test_a_program_that_has_initialised_torch_distributed_keeps_it() -> None:
    program = """
        import torch, torch.distributed as dist
        from lockstep import Accelerator
        from lockstep.state import AcceleratorState

        dist.init_process_group("gloo")
        accelerator = Accelerator(cpu=True)
        assert dist.get_backend() == "gloo" and accelerator.num_processes == dist.get_world_size() == 2
        assert accelerator.reduce(torch.ones(1), "sum").item() == 2
        AcceleratorState._reset_state(True)
        assert dist.get_backend() == "gloo"
        dist.destroy_process_group()
        Accelerator(cpu=True)
        assert dist.get_backend() == "lockstep"
    """
    run_ranks(program, 2, _SECONDS)


def test_an_accelerator_joins_the_ranks_of_the_programs_torch_distributed(tmp_path: Path) -> None:
    program = f"""
        import os
        import torch, torch.distributed as dist
        from lockstep import Accelerator, CommError
        from lockstep.state import AcceleratorState

        rank = int(os.environ["RANK"])
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            del os.environ[name]  # A scheduler that sets no variables.
        for backend in ("lockstep", "gloo"):  # The first lends its own connection.
            dist.init_process_group(backend, f"file://{tmp_path}/{{backend}}", rank=1 - rank, world_size=2)
            for _ in range(2):
                accelerator = Accelerator(cpu=True, expect_prepared_loader=False)
                assert (accelerator.process_index, accelerator.num_processes) == (1 - rank, 2)
                assert accelerator.local_process_index == 1 - rank and dist.get_backend() == backend
                assert accelerator.gather(torch.tensor([accelerator.process_index])).tolist() == [0, 1]
                del accelerator
                AcceleratorState._reset_state(True)
                assert dist.is_initialized()
            if backend == "lockstep":
                dist.destroy_process_group()
        if dist.get_rank() == 0:
            os.environ["LOCKSTEP_JOIN_TIMEOUT_MS"] = "100"
            try:
                Accelerator(cpu=True)
            except CommError as error:
                assert "[Accelerator] rank 1 of 2 did not join" in str(error), error
            else:
                raise AssertionError("no error")
        dist.barrier()
    """
    run_ranks(program, 2, _SECONDS)


def test_one_process_has_torch_distributed_after_init_distributed() -> None:
    program = """
import torch, torch.distributed as dist, lockstep
import lockstep.deepspeed as deepspeed
lockstep.Accelerator(cpu=True)
assert not dist.is_initialized()  # No launcher has started it, as with Accelerate.
deepspeed.init_distributed()
assert (dist.get_rank(), dist.get_world_size(), deepspeed.comm.get_world_size()) == (0, 1, 1)
total = torch.ones(2)
dist.all_reduce(total)
dist.barrier()
assert total.tolist() == [1, 1] and dist.new_group([0]).size() == 1
deepspeed.comm.destroy_process_group()
assert not dist.is_initialized()
"""
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": python_path()})
