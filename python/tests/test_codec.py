# SPDX-License-Identifier: Apache-2.0
"""lockstep._codec: every supported value comes back unchanged, and others are refused by name."""

from __future__ import annotations

import collections
import datetime
import enum
import json
import math
import pathlib
import random

import numpy
import pytest
import torch

from lockstep import _codec
from lockstep._core import ConfigError

Point = collections.namedtuple("Point", ["x", "y"])


class Batch(collections.UserDict):
    """Has the form of transformers' BatchEncoding."""


class Named(collections.UserDict):
    """Its constructor takes something else than its content."""

    def __init__(self, path):
        super().__init__()
        self.data["path"] = path


class Color(enum.IntEnum):
    RED = 1


def through_bytes(value):
    return _codec.decode(_codec.encode(value))


def through_json(value):
    """Does what a checkpoint does: the JSON value is text with sorted keys, the tensors are copies."""
    json_value, tensors = _codec.flatten(value)
    text = json.dumps(json_value, sort_keys=True, allow_nan=False)
    return _codec.unflatten(json.loads(text), {name: tensor.clone() for name, tensor in tensors.items()})


def same(a, b) -> bool:
    """Returns whether two values have the same types and contents, NaN included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, numpy.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return math.copysign(1, a) == math.copysign(1, b) and (a == b or (a != a and b != b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return a == b


VALUES = [
    None,
    True,
    0,
    2**63 - 1,
    -(2**63),
    2**63,
    -(10**400),
    0.1,
    -0.0,
    5e-324,
    float("inf"),
    float("-inf"),
    float("nan"),
    complex(1.5, float("inf")),
    "text \u00e9 \U0001f600 \x00 \n",
    "\ud800 half a pair",
    b"\x00\xff",
    bytearray(b"ab"),
    [],
    [1, [2.0, "3"]],
    (),
    (1, (2, None)),
    {1, "a", (2, 3)},
    frozenset({1}),
    range(3, -9, -2),
    slice(1, None, 2**70),
    {},
    {"$": "int", "v": "a dict that looks like a tag"},
    {1: "int", "1": "str", 2.5: "float", (1, 2): "tuple", None: "none", b"k": "bytes"},
    {"z": 1, "a": 2, "m": 3},
    Point(1, [2]),
    datetime.datetime(2024, 2, 29, 23, 59, 59, 999999),
    datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=-3, minutes=-30))),
    datetime.date(1, 1, 1),
    datetime.time(1, 2, 3),
    datetime.timedelta(days=-1, microseconds=1),
    pathlib.Path("a/b c"),
    torch.float8_e4m3fn,
    torch.device("cuda:3"),
    torch.Size([2, 3]),
    numpy.float32(0.1),
    numpy.int64(-5),
    numpy.bool_(True),
    numpy.datetime64("2024-01-01T00:00"),
    numpy.array(3.5),
    numpy.arange(6, dtype=">i2").reshape(2, 3),
    numpy.array([["ab", "c"]]),
    numpy.zeros((0, 4)),
    numpy.arange(6)[::2],
    numpy.array([1 + 2j]),
]


@pytest.mark.parametrize("copy", [through_bytes, through_json])
@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:40])
def test_a_value_comes_back_unchanged(value, copy):
    assert same(value, copy(value))


@pytest.mark.parametrize("copy", [through_bytes, through_json])
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e5m2,
        torch.complex64,
        torch.complex128,
        torch.int64,
        torch.int8,
        torch.uint8,
        torch.uint16,
        torch.bool,
    ],
    ids=str,
)
def test_a_tensor_of_any_dtype_and_shape_comes_back_unchanged(dtype, copy):
    for tensor in (torch.arange(6).reshape(2, 3), torch.tensor(1), torch.zeros(0, 2), torch.arange(12)[::3]):
        value = tensor.to(dtype)
        found = copy(value)
        assert found.dtype == dtype and found.shape == value.shape
        as_bytes = [one.contiguous().reshape(-1).view(torch.uint8) if one.numel() else one for one in (value, found)]
        assert torch.equal(*as_bytes)


def test_gradients_are_not_kept_and_memory_is_shared_by_flatten():
    weight = torch.nn.Parameter(torch.ones(3))
    _, tensors = _codec.flatten({"w": weight})
    (found,) = tensors.values()
    assert not found.requires_grad and found.data_ptr() == weight.data_ptr()
    assert type(through_bytes(weight)) is torch.Tensor


def test_a_conjugated_view_keeps_its_values():
    value = torch.tensor([1 + 2j, 3 - 4j]).conj()
    assert through_bytes(value).tolist() == [1 - 2j, 3 + 4j]


def test_nested_values_keep_order_and_types():
    value = {"b": [(1, {"x": torch.tensor([1.5])}), numpy.array([2])], "a": ({1, 2}, None)}
    for copy in (through_bytes, through_json):
        assert same(value, copy(value))


def test_other_dict_classes_become_dict():
    ordered = collections.OrderedDict([("b", 1), ("a", 2)])
    counted = collections.defaultdict(list, {"k": [1]})
    assert through_bytes([ordered, counted]) == [{"b": 1, "a": 2}, {"k": [1]}]
    assert [type(one) for one in through_bytes([ordered, counted])] == [dict, dict]


def test_states_of_python_and_numpy_random_generators_can_be_restored():
    random.seed(5)
    numpy.random.seed(6)
    saved = through_json({"python": random.getstate(), "numpy": numpy.random.get_state()})
    expected = [random.random(), numpy.random.rand()]
    random.seed(0)
    numpy.random.seed(0)
    random.setstate(saved["python"])
    numpy.random.set_state(saved["numpy"])
    assert [random.random(), numpy.random.rand()] == expected


class Unknown:
    pass


class HasState:
    def state_dict(self):
        return {}


@pytest.mark.parametrize(
    ("value", "path", "hint"),
    [
        ({"a": [1, 2, 3, Unknown()]}, "value['a'][3] is of type", "Unknown"),
        ([(1, Color.RED)], "value[0][1] is of type", ".value"),
        ({"model": HasState()}, "value['model']", "state_dict()"),
        ({Unknown: 1}, "value<key 0>", "type"),
        ([lambda: 0], "value[0]", "function"),
        ([numpy.array([object()])], "value[0]", ".tolist()"),
        ({"s": torch.eye(2).to_sparse()}, "value['s']", "to_dense()"),
        ([torch.empty(2, device="meta")], "value[0]", "meta"),
        ([torch.max(torch.eye(2), 0)], "value[0]", "tuple(value)"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_an_unsupported_value_is_refused_with_its_place_and_a_hint(value, path, hint):
    with pytest.raises(ConfigError) as caught:
        _codec.encode(value, "save_state")
    assert str(caught.value).startswith("[save_state] the value")
    assert path in str(caught.value) and hint in str(caught.value)


def test_a_value_that_contains_itself_is_refused():
    value = [1]
    value.append({"again": value})
    with pytest.raises(ConfigError, match=r"value\[1\]\['again'\] contains itself"):
        _codec.encode(value)
    shared = [1]
    assert through_bytes([shared, shared]) == [[1], [1]]


def test_truncated_and_foreign_data_is_refused():
    data = _codec.encode({"w": torch.ones(4)})
    for broken in (b"", data[:5], data[:20], data[:-1], data + b"x"):
        with pytest.raises(ConfigError, match="bytes, expected"):
            _codec.decode(broken)
    with pytest.raises(ConfigError, match="unknown type 'pickle'"):
        _codec.unflatten({"$": "pickle", "v": "x"}, {})


def test_a_namedtuple_of_an_unknown_class_is_refused():
    json_value, tensors = _codec.flatten(Point(1, 2))
    json_value["class"] = ["os", "system"]
    with pytest.raises(ConfigError, match="os.system"):
        _codec.unflatten(json_value, tensors)


def test_a_userdict_keeps_its_class():
    batch = Batch({"ids": torch.arange(3), "names": ["a", "b"]})
    for there_and_back in (through_bytes, through_json):
        back = there_and_back([batch])[0]
        assert type(back) is Batch and list(back) == list(batch)
        assert torch.equal(back["ids"], batch["ids"]) and back["names"] == ["a", "b"]


def test_a_userdict_that_is_not_made_of_its_content_is_refused():
    with pytest.raises(ConfigError, match="constructor does not take a dict of its content"):
        through_bytes(Named("x"))


def test_a_userdict_of_an_unknown_class_is_refused():
    json_value, tensors = _codec.flatten(Batch(x=1))
    for place in (["os", "system"], ["collections", "OrderedDict"], ["unheard", "Of"]):
        with pytest.raises(ConfigError, match=rf"{place[0]}\.{place[1]}, which this program does not define"):
            _codec.unflatten({**json_value, "class": place}, tensors)
