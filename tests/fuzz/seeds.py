#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seeds of the fuzzers: safetensors files, headers, manifests, sets of files and settings, valid and
invalid.

    seeds.py FOLDER     writes FOLDER/safetensors, FOLDER/manifest, FOLDER/tensor_set and FOLDER/settings, a
                        file a seed, for libFuzzer
"""
import json
import pathlib
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DTYPES = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
WHOLE_DTYPES = [name for name, bits in DTYPES.items() if bits % 8 == 0]


def file_of(header, data=b""):
    """A file with that header, given as bytes, and the right length in front."""
    return struct.pack("<Q", len(header)) + header + data


def data_of(count):
    """Bytes of which no two stretches nearby are alike."""
    return bytes((167 * i + (i >> 8) * 31 + 11) % 256 for i in range(count))


def tensors_header(*tensors, metadata=None):
    """The header and data of (name, dtype, shape) laid out one after the other."""
    header, end = {} if metadata is None else {"__metadata__": metadata}, 0
    for name, dtype, shape in tensors:
        bits = DTYPES[dtype]
        for size in shape:
            bits *= size
        begin, end = end, end + bits // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    return json.dumps(header, separators=(",", ":")).encode(), data_of(end)


def one(dtype, shape, offsets):
    return f'{{"a":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}}}'.encode()


def headers():
    """(header, data), by hand: the shortest of each kind, and what readers have stumbled over."""
    for dtype in DTYPES:
        yield tensors_header(("a", dtype, [4]))
    yield tensors_header(("model.weight", "F32", [2, 3]), ("model.bias", "BF16", [3]), metadata={"format": "pt"})
    yield tensors_header(("a", "U8", [1]), ("b", "F64", [1]), ("c", "I64", [0, 7]), ("d", "F16", []))
    yield tensors_header(("", "U8", [2]), ("../../x", "U8", [2]), ("größe\n\x07\"\\", "I8", [2]))
    yield tensors_header(*((f"layer.{i}.weight", "F32", [i % 3, 2]) for i in range(20)), metadata={"a": "b", "": ""})
    for text in [
        b"{}", b"{}   ", b"{}\n\t\r ", b" {}", b"[]", b"null", b'{"__metadata__":null}', b'{"__metadata__":{}}',
        b'{"__metadata__":{"a":1}}', b'{"__metadata__":{},"__metadata__":{}}', b'{"__metadata__":{"a":"1","a":"2"}}',
        b'{"a":{"x":' + b"[" * 200 + b"]" * 200 + b"}}", b"{}\0", b"\xef\xbb\xbf{}", b'{"\\ud83d\\ude00":{}}',
    ]:  # fmt: skip
        yield text, b""
    same = b'{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    yield b'{"a":' + same + b',"a":' + same + b"}", b"d"
    yield b'{"a":["U8",[1],[0,1]]}', b"d"
    yield one('{"U8":null}', "[1]", "[0,1]"), b"d"
    yield one('"U8"', "[" + "1," * 64 + "1]", "[0,1]"), b"d"
    yield one('"U8"', "[0,9223372036854775808]", "[0,0]"), b""
    yield one('"U8"', "[0,4294967296,4294967296]", "[0,0]"), b""
    yield one('"U8"', "[4294967296,4294967296]", "[0,0]"), b""
    yield one('"U8"', "[1.0]", "[0,1]"), b"d"
    yield one('"U8"', "[-0]", "[0,0]"), b""
    yield same.replace(b'"shape"', b'"extra":{"a":[1,{}]},"shape"').join([b'{"a":', b"}"]), b"d"


def files():
    """Whole files: what the reference implementation wrote, and the headers above in a file each."""
    for path in sorted((ROOT / "tests" / "golden").glob("*.safetensors")):
        yield path.read_bytes()
    for header, data in headers():
        yield file_of(header, data)


def manifests():
    record = {
        "bytes": 5600, "crc32c": "0123abcd", "name": "model.safetensors", "tensors": {"weight": "89abcdef"},
    }  # fmt: skip
    for records in [[], [record], [record, record | {"name": "loaders_0.json", "tensors": {}}], [record, record]]:
        yield {
            "crc32c": "00000000", "files": records, "format": "lockstep-checkpoint",
            "meta": {"loss": 0.1, "steps": [1, -2, 3.5e-8, None, True, "größe"]}, "sequence": 7, "version": 1,
            "world_size": 2,
        }  # fmt: skip


# made_up_files.h says what the bytes of an entry mean.
SIZES = [0, 1, 2, 3, 4, 5, 6, 8, 12, 2**31, 2**32, 2**57, 2**60, 2**63 - 1, 2**63, 2**64 - 1]


def entry_of(shape, name=0, dtype=2, begin=None, count=0):
    """An entry of those names and dtypes; a slice if it has a begin."""
    kind = name | dtype << 2 | (begin is not None) << 4 | len(shape) << 5
    return bytes([kind, *map(SIZES.index, shape)] + ([] if begin is None else [begin, count]))


def sets():
    """(number for the names, lists of entries, one for each file)."""
    halves = [[entry_of([2, 3], begin=0, count=3)], [entry_of([2, 3], begin=3, count=3)]]
    yield 0, [[]]
    yield 0, [[entry_of([2, 3]), entry_of([], name=1, dtype=3)]]
    yield 0, halves
    yield 0, [halves[1], [entry_of([2], name=3)], halves[0]]
    yield 0, [halves[0], [entry_of([2, 3], begin=2, count=3)]]
    yield 0, [halves[0], [entry_of([2, 3], begin=4, count=2)]]
    yield 0, [[entry_of([2, 3], begin=1, count=3)], halves[1]]  # As many elements as there should be.
    yield 0, [halves[0], [entry_of([3, 2], begin=3, count=3)]]
    yield 0, [halves[0], [entry_of([2, 3], dtype=1, begin=3, count=3)]]
    for size in SIZES:
        yield 0, [[entry_of([0, size])]]
        yield 0, [[entry_of([0, size], begin=0, count=0)], [entry_of([size, 0], name=1)]]
    for names in range(1, 64, 5):
        yield names, halves


def slices():
    yield b"{}"
    yield b'{"a":{"begin":6,"shape":[4,3]},"b":{"begin":0,"shape":[]}}'
    yield b'{"a":{"begin":0,"shape":[0,1152921504606846976]}}'
    yield b'{"a":{"begin":13,"shape":[4,3]}}'
    yield b'{"a":{"begin":0,"shape":[4,3],"more":1}}'


def indexes():
    """(index, entries of both shards)."""
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    entries = [[entry_of([2, 3]), entry_of([2], name=1)], [entry_of([0, 5], name=2)]]
    places = {"a": one, "b": one, "layer.weight": two}
    yield {"metadata": {"total_size": 32}, "weight_map": places}, entries
    yield {"weight_map": places}, entries
    yield {"metadata": {"total_size": 31}, "weight_map": places}, entries
    yield {"weight_map": places | {"b": two}}, entries
    yield {"weight_map": places | {"b": two}}, [entries[0], [*entries[1], entry_of([2], name=1)]]
    yield {"weight_map": places | {"b": "../" + one}}, entries
    yield {"weight_map": {"a": one}}, [[entry_of([2, 3], begin=0, count=3)], []]


def tensor_sets():
    def file(entries):
        return bytes([len(entries)]) + b"".join(entries)

    yield from (b"\0" + text for text in slices())
    for names, files in sets():
        yield bytes([1, len(files), names]) + b"".join(map(file, files))
    for index, files in indexes():
        yield b"\2" + json.dumps(index).encode() + b"\0" + b"".join(map(file, files))


def ds_configs():
    """DeepSpeed's configurations, right ones and wrong ones."""
    adam = {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.9, 0.99], "adam_w_mode": False}}
    yield {"train_batch_size": 8, "optimizer": adam, "fp16": {"enabled": True}, "zero_optimization": True}
    yield {
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto", "bfloat16": {"enabled": True},
        "zero_optimization": {"stage": 3, "cpu_offload": True, "offload_param": {"device": "cpu"},
                              "reduce_bucket_size": 5e8, "zero_hpz_partition_size": 2},
        "comms_logger": {"prof_ops": ["all_reduce"]}, "aio": {"block_size": 1}, "amp": {},
    }  # fmt: skip
    for kind, params in [
        ("WarmupDecayLR", {"total_num_steps": 100, "warmup_max_lr": "auto"}), ("MultiStepLR", {"milestones": [1, 3]}),
        ("OneCycle", {"cycle_min_lr": 0.1, "cycle_max_lr": [1, 2]}), ("StepLR", {"step_size": 3}),
    ]:  # fmt: skip
        yield {"train_batch_size": 4, "optimizer": adam, "scheduler": {"type": kind, "params": params}}


def settings():
    """What settings_fuzz.cpp reads, after the byte that says with which reader."""
    golden = sorted((ROOT / "tests" / "golden" / "config").rglob("*"))
    for path in golden:
        if path.suffix in (".yaml", ".json"):
            for reader in (0, 2) if path.suffix == ".yaml" else (1,):
                yield bytes([reader]) + path.read_bytes()
    for text in [
        "num_processes: 4\nmax_restarts: 2\nenv:\n  A: b\n", "mixed_precision: no\n", "a: &x [1]\nb: *x\n",
        "timeout: 1e3\ntimeout: 2\n", "'a': |\n  b\n", "num_procesess: 2\n", "hostfile: ~/hosts\n", "{}", "# c\n",
    ]:  # fmt: skip
        yield b"\0" + text.encode()
    yield b"\1" + b'{"num_processes": 2, "env": {"A": "b"}}'
    for text in ["a slots=2\nb:4 # c\n\r\n[::1]:2\nc slots=2 max_slots=4\n", "-oProxyCommand=x\n"]:
        yield b"\3" + text.encode()
    yield b"\4" + b"export A='b c'\n# d\nE=\"f\"\n"
    for text in ["one:0,1@two", "two:3", "one:9", "@"]:
        yield b"\5" + text.encode()
    for config in ds_configs():
        yield b"\6// by seeds.py\n" + json.dumps(config, indent=1).encode()


def main(folder):
    def write(kind, contents):
        target = folder / kind
        target.mkdir(parents=True, exist_ok=True)
        for number, content in enumerate(contents):
            (target / f"seed_{number}").write_bytes(content)

    # safetensors_fuzz.cpp and tensor_set_fuzz.cpp say what the first bytes mean.
    write(
        "safetensors",
        [b"\0" + content for content in files()]
        + [b"\1" + struct.pack(">H", len(data)) + header for header, data in headers()],
    )
    write("tensor_set", tensor_sets())
    write("settings", settings())
    write("manifest", [(json.dumps(m, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode() for m in manifests()])


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
