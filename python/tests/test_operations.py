# SPDX-License-Identifier: Apache-2.0
"""lockstep.utils.operations and random, in 1, 2 and 3 real processes."""

from __future__ import annotations

import collections
import pickle

import pytest
import torch
from launch import finish_ranks, run_ranks

from lockstep.utils import operations
from lockstep._core import ConfigError

Pair = collections.namedtuple("Pair", ["a", "b"])

PRELUDE = """
import torch
from lockstep.state import PartialState
from lockstep._core import ConfigError
from lockstep.utils import operations as op
from lockstep.utils import set_seed, synchronize_rng_states
state = PartialState()
P, r = state.num_processes, state.process_index

def throws(kind, text, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        assert text in str(error), str(error)
        return str(error)
    raise AssertionError("nothing was thrown")
"""


def on_ranks(program: str, ranks: int, **variables: str) -> list[str]:
    return run_ranks(PRELUDE + program, ranks, **variables)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_collectives_of_nested_values(ranks):
    on_ranks(
        """
import collections
Pair = collections.namedtuple("Pair", ["a", "b"])
rows = torch.full((2, 3), float(r))
data = Pair([rows, torch.arange(6).reshape(2, 3).t() + r], {"n": torch.tensor(r), "half": rows.bfloat16()})
found = op.gather(data)
assert type(found) is Pair
if P > 1:
    assert found.a[0][:, 0].tolist() == [float(i // 2) for i in range(2 * P)]
    assert torch.equal(found.a[1], torch.cat([torch.arange(6).reshape(2, 3).t() + i for i in range(P)]))
    assert found.b["n"].tolist() == list(range(P)) and found.b["half"].dtype == torch.bfloat16
else:
    assert found is data

assert op.gather_object([r, {"rank": r}]) == [x for i in range(P) for x in (i, {"rank": i})]
assert op.gather_object(("t",) * (r + 1)) == (["t"] * (P * (P + 1) // 2) if P > 1 else ("t",))
assert op.gather_object([torch.tensor([r])])[-1].tolist() == [P - 1]

summed = op.reduce({"x": torch.tensor([1.0, r])}, "sum")["x"]
assert summed.tolist() == [P, P * (P - 1) / 2]
assert op.reduce(torch.tensor([float(r)])).item() == (P - 1) / 2
assert op.reduce([torch.tensor([r])], "max")[0].item() == P - 1
assert op.reduce(torch.tensor([r]), "none").item() == r
mine = torch.tensor([float(r)], requires_grad=True)
assert op.reduce(mine, "sum") is not mine and mine.item() == r

values = {"x": torch.full((2, 2), r), "t": torch.full((3, 2), r).t(), "s": torch.tensor(r)}
before = values["t"]
last = op.broadcast(values, from_process=P - 1)
assert last["t"] is before and all(bool((one == P - 1).all()) for one in last.values())

names = [r, {"a": (r, None)}, "x" * r]
assert op.broadcast_object_list(names, from_process=P - 1) is names
assert names == [P - 1, {"a": (P - 1, None)}, "x" * (P - 1)]
""",
        ranks,
    )


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_padding_and_copies_to_all_processes(ranks):
    on_ranks(
        """
mine = {"x": torch.ones(r + 1, 2), "y": torch.ones(2, r + 1), "scalar": torch.tensor(r)}
found = op.pad_across_processes(mine, dim=0, pad_index=-1)
assert found["x"].shape == (P, 2) and found["x"][:, 0].tolist() == [1.0] * (r + 1) + [-1.0] * (P - r - 1)
assert found["y"] is mine["y"] and found["scalar"] is mine["scalar"]
first = op.pad_across_processes([mine["y"]], dim=-1, pad_first=True)[0]
assert first[0].tolist() == [0.0] * (P - r - 1) + [1.0] * (r + 1)
owner = P - 1
sent = torch.arange(4).reshape(2, 2).to(torch.int16) if r == owner else None
copy = op.copy_tensor_to_devices(sent)
assert copy.dtype == torch.int16 and copy.tolist() == [[0, 1], [2, 3]] and copy is not sent
throws(ConfigError, "exactly one process", op.copy_tensor_to_devices, None)
""",
        ranks,
    )


def test_a_value_that_one_process_cannot_send_is_an_error_on_all():
    on_ranks(
        """
bad = [object()] if r == 1 else [0]
message = throws(ConfigError, "[gather_object] the value[0] is of type builtins.object", op.gather_object, bad)
assert "(process 1)" in message
throws(ConfigError, "(process 1)", op.broadcast_object_list, list(bad), 1)
throws(ConfigError, "expected 0 to 1", op.broadcast_object_list, [0], 2)
# The group is still usable.
assert op.gather_object([r]) == [0, 1]
longer = [0] * (2 if r == 0 else 3)
if r == 0:
    op.broadcast_object_list(longer)
else:
    throws(ConfigError, "has 3 items; expected 2", op.broadcast_object_list, longer)
""",
        2,
    )


def test_debug_mode_names_the_shapes_of_all_processes():
    on_ranks(
        """
data = {"x": torch.ones(1, 5) if r == 0 else torch.ones(1, 2, 5)}
for function in (op.gather, op.reduce, op.broadcast):
    message = throws(op.DistributedOperationException, "`lockstep.utils.operations.", function, data)
    assert "Process 0: {'x': [1, 5]}" in message and "Process 1: {'x': [1, 2, 5]}" in message
throws(op.DistributedOperationException, "Process 1: [1, 2, 5]", op.pad_across_processes, data)
assert op.gather(torch.tensor([r])).tolist() == [0, 1]
""",
        2,
        ACCELERATE_DEBUG_MODE="1",
    )


def test_without_debug_mode_a_mismatch_ends_the_operation_on_all_processes():
    outputs = finish_ranks(PRELUDE + "op.gather(torch.ones(2 + r, 3))", 2)
    for code, output in outputs:
        assert code == 1 and "lockstep.CommError" in output, output


def test_random_states_are_equal_after_synchronization():
    outputs = on_ranks(
        """
set_seed(7, device_specific=False)
same = torch.rand(1).item()
torch.manual_seed(100 + r)
own = torch.Generator().manual_seed(r)
synchronize_rng_states(["torch", "generator"], own)
print(same, torch.rand(1).item(), torch.rand(1, generator=own).item())
throws(ConfigError, "expected torch, cuda or generator", synchronize_rng_states, ["xla"])
throws(ConfigError, "pass generator=", synchronize_rng_states, ["generator"])
""",
        3,
    )
    assert len(set(outputs)) == 1
    expected = torch.rand(1, generator=torch.Generator().manual_seed(0)).item()
    assert outputs[0].split()[2] == str(expected)


def test_device_specific_seeds_differ_between_processes():
    outputs = on_ranks(
        """
import random, numpy
from lockstep.state import AcceleratorState
AcceleratorState()
set_seed(7, device_specific=True)
print(random.random(), numpy.random.rand(), torch.rand(1).item())
""",
        2,
    )
    assert not set(outputs[0].split()) & set(outputs[1].split())


def test_recursively_apply_keeps_types_and_refuses_other_leaves():
    data = Pair((torch.ones(1), [2]), collections.OrderedDict(x="text"))
    found = operations.recursively_apply(lambda tensor, factor: tensor * factor, data, 3)
    assert type(found) is Pair and type(found.b) is collections.OrderedDict and found.a[0].item() == 3
    assert found.a[1] == [2] and found.b["x"] == "text"
    with pytest.raises(TypeError, match="of type int"):
        operations.reduce([torch.ones(1), 2])


def test_send_to_device_uses_the_objects_own_method_and_skips_keys():
    class Batch:
        def to(self, device):
            return f"moved to {device}"

    half = torch.ones(2, dtype=torch.float16)
    data = {"x": [half], "kept": half, "n": 3, "b": Batch()}
    found = operations.send_to_device(data, "meta", skip_keys="kept")
    assert found["x"][0].is_meta and found["kept"] is half and found["n"] == 3 and found["b"] == "moved to meta"


def test_batch_size_is_that_of_the_first_tensor():
    data = {"x": [torch.ones(5, 2)], "y": torch.ones(3)}
    assert operations.find_batch_size(data) == 5
    assert operations.ignorant_find_batch_size({"x": "text"}) is None
    with pytest.raises(ValueError, match="an empty list"):
        operations.find_batch_size([])
    with pytest.raises(ValueError, match="without dimensions"):
        operations.find_batch_size(torch.tensor(1))


def test_structure_round_trip_slices_and_concatenation():
    data = {"x": torch.ones(4, 2), "y": (torch.zeros(4, dtype=torch.int32),)}
    empty = operations.initialize_tensors(operations.get_data_structure(data))
    assert operations.get_shape(empty) == {"x": [4, 2], "y": ([4],)} and empty["y"][0].dtype == torch.int32
    halves = [operations.slice_tensors(data, slice(0, 1)), operations.slice_tensors(data, slice(1, 4))]
    assert torch.equal(operations.concatenate(halves)["x"], data["x"])
    assert operations.listify({"x": torch.tensor([1.5], dtype=torch.bfloat16)}) == {"x": [1.5]}
    assert operations.pad_input_tensors(torch.ones(5, 2), 5, 4).shape == (8, 2)
    assert operations.find_device({"a": [1, torch.ones(1)]}) == torch.device("cpu")


def test_results_of_a_wrapped_forward_are_float32():
    def forward(x):
        return {"logits": x.half(), "ids": torch.arange(2)}

    wrapped = operations.convert_outputs_to_fp32(forward)
    found = wrapped(torch.ones(2))
    assert found["logits"].dtype == torch.float32 and found["ids"].dtype == torch.int64
    assert wrapped.__wrapped__.__wrapped__ is forward
    with pytest.raises(pickle.PicklingError, match="unwrap_model"):
        pickle.dumps(wrapped.__wrapped__)


def test_reductions_that_have_no_meaning_are_refused():
    for arguments, text in [
        ((torch.ones(1), "median"), "expected one of mean, sum, max, none"),
        ((torch.ones(1), "sum", 0.5), "multiply the result"),
        ((torch.arange(3), "mean"), "tensor.float()"),
    ]:
        with pytest.raises(ConfigError) as caught:
            operations.reduce(*arguments)
        assert text in str(caught.value)
