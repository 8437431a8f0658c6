# SPDX-License-Identifier: Apache-2.0
"""Messages of the C++ library name options and calls that a Python program has."""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from launch import run_ranks

import lockstep
from lockstep import Accelerator, LocalSGD, PartialState, _core, deepspeed, utils
from lockstep._spelling import SPELLING, in_python
from lockstep.data_loader.map_shard import DataLoaderMapShard
from lockstep.optimizer import AcceleratedOptimizer
from lockstep.scheduler import AcceleratedScheduler

ROOT = Path(__file__).resolve().parents[2]
# Files whose messages no Python program sees, by reason.
NOT_IN_PYTHON = {
    "checks of C++ types by the compiler": (
        "lockstep/accelerator/prepare/prepare.h lockstep/accelerator/prepare/preparer.h lockstep/base/memory/packed.h "
        "lockstep/data/dataset/ lockstep/data/sample/"
    ),
    "classes and functions that only C++ has": (
        "lockstep/accelerator/executable_batch_size.cpp lockstep/accelerator/loop/scheduler.cpp "
        "lockstep/accelerator/profile/ lockstep/accelerator/sequence_state.cpp lockstep/base/program/ "
        "lockstep/expert_parallel/moe.cpp lockstep/pipeline/pipeline_module.cpp lockstep/pipeline/tensor_messages.cpp "
        "lockstep/data/loader/from_torch lockstep/data/loader/loader_checks.cpp lockstep/data/loader/sequence_dataset.cpp "
        "lockstep/data/loader/tensor_serializer.cpp lockstep/engine/setup/accelerator_options.cpp "
        "lockstep/engine/setup/init_distributed.cpp lockstep/optim/rules/mup.cpp lockstep/precision/ "
        "lockstep/schedule/ lockstep/zero/activation/"
    ),
    "the launcher and the command line, which know no language": "lockstep/launcher/ lockstep/config/ cli/",
}
SKIPPED = tuple(path for paths in NOT_IN_PYTHON.values() for path in paths.split())
# Other messages that no Python program sees, by a part of each.
SEEN_IN_CPP_ONLY = (
    "log_with holds a null pointer",  # Python's trackers are objects or names.
    "rng_types cannot contain kGenerator",  # Python's loaders have generators, and synchronize them.
    "adjust_scheduler needs scheduler_steps",  # Python's schedulers count as Accelerate's.
    "request_preemption() needs",  # Python has no such call.
    "dispatch_batches needs the group",  # Python's loaders dispatch by themselves.
    "the scheduler needs a metric, and got none",  # Python steps its own schedulers.
    "a metric needs the scheduler",
    "torch::save cannot save this optimizer",
    "torch::load cannot load this optimizer",
    "this loader is empty: free_memory()",
    "the stream ended after",
    "set_even_batches() was called before shard()",
    "even_batches cannot change while batches are dispatched",
    "backward(loss_sum, count)",
    "average_gradients() was called",
    "this accumulation group has a backward(loss_sum",
    "no function of torch::nn::Module is replaced",  # A comment in a table of the documentation.
    "module classes (`torch.nn.Linear`",
    "'s, in a GroupOptions",  # The bindings make the options of groups.
    "set FsdpPlugin::",  # Notes of `lockstep config --import`.
    "open an ActivationCheckpointing::Scope with cpu_checkpointing in the program",
    "call activation_checkpoint(module, x) in the program",
    "take `const Values&` for several",  # Python's chunks return lists.
    "' && name.back() == '",  # Code between two characters.
)
CPP = re.compile(r"\w::|->|\bk[A-Z][a-z]\w*|\bstd\b|make_shared|\{\.|\w+Options\b|NoGradGuard|nullptr|auto \[|= (?:true|false)\b")
CALL = re.compile(r"(?<![\w-])(\w[\w.]*)\(")


def listed_messages() -> list[tuple[str, str]]:
    """Returns the place and the text of each message that may reach a Python program."""
    loader = importlib.machinery.SourceFileLoader("list_messages", str(ROOT / "scripts" / "list_messages"))
    spec = importlib.util.spec_from_loader("list_messages", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    command = ["git", "ls-files", "lockstep", "python/bindings"]
    paths = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    found = []
    for path in paths:
        name = Path(path).name
        if not path.endswith((".h", ".cpp")) or "test" in name or path.startswith(SKIPPED):
            continue
        for line, text in module.messages((ROOT / path).read_text(encoding="utf-8")):
            if text.count(" ") >= 3 and not any(part in text for part in SEEN_IN_CPP_ONLY):
                found.append((f"{path}:{line}", text))
    return found


def names_of_python() -> set[str]:
    """Returns the names that a program can call."""
    owners: list[Any] = [
        builtins, torch, torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, lockstep,
        Accelerator, PartialState, LocalSGD, utils, deepspeed, deepspeed.DeepSpeedEngine, deepspeed.zero, deepspeed.utils,
        DataLoaderMapShard, AcceleratedOptimizer, AcceleratedScheduler, torch.utils.data.Dataset,
    ]  # fmt: skip
    return {name for owner in owners for name in dir(owner)} | {"engine"}  # The program's variable is callable.


def test_messages_have_no_spelling_of_cpp() -> None:
    found = listed_messages()
    assert len(found) > 900
    wrong = [f"{place}: {in_python(text)}" for place, text in found if CPP.search(in_python(text))]
    assert not wrong, "\n".join(wrong)


def test_calls_in_remedies_exist_in_python() -> None:
    known = names_of_python()
    wrong = []
    for place, text in listed_messages():
        remedy = in_python(text)
        unknown = {call for call in CALL.findall(remedy) if call.split(".")[-1] not in known}
        if unknown and "python -c" not in remedy:  # A command for a shell.
            wrong.append(f"{place}: {sorted(unknown)} in {remedy}")
    assert not wrong, "\n".join(wrong)


def test_each_text_occurs_in_a_message() -> None:
    texts = [text for _, text in listed_messages()]
    unused = [cpp for cpp in SPELLING if not any(cpp in text for text in texts)]
    assert not unused, unused


def test_errors_of_the_library_and_of_the_package_have_pythons_spelling(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    with pytest.raises(_core.ConfigError, match="needs project_dir of the Accelerator; set it") as caught:
        accelerator._core.save_state(None)
    assert isinstance(caught.value, ValueError) and caught.value.args == (str(caught.value),)
    error = _core.CheckpointError("[x] read it within Accelerator::with_gathered_parameters", 1)
    assert error.args == ("[x] read it within lockstep.utils.GatheredParameters", 1)
    assert in_python("an optimizer of torch::optim's, not at::kHalf") == "an optimizer of torch.optim's, not torch.float16"


def test_log_lines_have_pythons_spelling() -> None:
    program = """
    import gc, torch
    from lockstep import Accelerator, LocalSGD
    accelerator = Accelerator()
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    scope = LocalSGD(accelerator, model, 2)
    scope.__enter__()
    del scope
    gc.collect()
    """
    for output in run_ranks(program, 2):
        assert "LocalSGD ended by an exception: every process keeps its own parameters; load a checkpoint" in output
