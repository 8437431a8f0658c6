#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a checkpoint of Lockstep with numpy only, as docs/checkpoint-format.md describes it.

Assembles the tensors of a set from all files and slices, checks every checksum, and prints the name, dtype
and shape of each tensor. With --output, writes them as one safetensors file in float32.

A checkpoint on separate disks of several hosts is given as the folders of all hosts.
"""
import argparse
import json
import re
import struct
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

BEFORE_CRC = b'{\n  "crc32c": "'
KEYS = {"crc32c", "files", "format", "meta", "sequence", "version", "world_size"}
SLICES_KEY = "lockstep.slices"
PART_KEY = "lockstep.part_of_rank"
# Bytes of an element. numpy has no bfloat16 and no 8-bit floats, which stay bytes.
DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "C64": 8, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip


class CheckpointError(Exception):
    """The fault of a file or tensor."""


class Tensor(NamedTuple):
    dtype: str
    shape: list
    data: np.ndarray  # Bytes, row-major and little-endian.


# --- CRC-32C


def _crc_table():
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table


TABLE = _crc_table()


def _update(crc, data):
    for byte in data:
        crc = int(TABLE[(crc ^ byte) & 0xFF]) ^ (crc >> 8)
    return crc


def _after_zeros(count):
    """Returns the effect of `count` zero bytes on each of a checksum's 32 bits: a linear map."""
    columns = [1 << bit for bit in range(32)]
    step = [int(_update(column, b"\0")) for column in columns]
    while count:
        if count & 1:
            columns = [_apply(step, column) for column in columns]
        step = [_apply(step, column) for column in step]
        count >>= 1
    return columns


def _apply(columns, crc):
    result = 0
    for bit in range(32):
        if crc >> bit & 1:
            result ^= columns[bit]
    return result


def crc32c(data, lanes=1024):
    """Computes the checksums of many chunks of `data` at once, and combines them."""
    data = np.frombuffer(data, dtype=np.uint8)
    length = data.size // lanes
    crc = 0xFFFFFFFF
    if length > 0:
        columns = data[: lanes * length].reshape(lanes, length).T
        parts = np.zeros(lanes, dtype=np.uint32)
        for column in np.ascontiguousarray(columns):
            parts = TABLE[(parts ^ column) & 0xFF] ^ (parts >> 8)
        shift = _after_zeros(length)
        for part in parts:
            crc = _apply(shift, crc) ^ int(part)
    return _update(crc, data[lanes * length :].tolist()) ^ 0xFFFFFFFF


def expect_crc(where, data, expected):
    got = f"{crc32c(data):08x}"
    if got != expected:
        raise CheckpointError(f"{where}: is damaged; got crc32c {got}, expected {expected}")


# --- files


def read_manifest(folder):
    path = folder / "manifest.json"
    data = path.read_bytes()
    covered = len(BEFORE_CRC) + 8
    if not data.startswith(BEFORE_CRC):
        raise CheckpointError(f"{path}: does not start with its checksum")
    expect_crc(path, data[covered:], data[len(BEFORE_CRC) : covered].decode())
    manifest = json.loads(data)
    if manifest["format"] != "lockstep-checkpoint" or manifest["version"] != 1 or set(manifest) != KEYS:
        raise CheckpointError(f"{path}: is no manifest; expected format lockstep-checkpoint, version 1")
    return manifest


def read_listed(folder, record):
    path = folder / record["name"]
    data = path.read_bytes()
    if len(data) != record["bytes"]:
        raise CheckpointError(f"{path}: got {len(data)} bytes, expected {record['bytes']}")
    expect_crc(path, data, record["crc32c"])
    return data


def parse_safetensors(where, data):
    """Returns the metadata and the tensors by name of a file's bytes."""
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    values = np.frombuffer(data, dtype=np.uint8)[8 + length :]
    metadata = header.pop("__metadata__", None) or {}
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        size = DTYPE_BYTES[entry["dtype"]] * int(np.prod(entry["shape"], dtype=np.int64))
        if end - begin != size or end > values.size:
            raise CheckpointError(f"{where}: {name}: has {end - begin} bytes, expected {size}")
        tensors[name] = Tensor(entry["dtype"], entry["shape"], values[begin:end])
    return metadata, tensors


# --- sets of tensors


def files_of(manifest, stem):
    """Returns the records of the files of the set `stem`."""
    records = {record["name"]: record for record in manifest["files"]}
    if f"{stem}.safetensors" in records:
        return [records[f"{stem}.safetensors"]]
    parts = {}
    for name, record in records.items():
        match = re.fullmatch(re.escape(stem) + r"-(\d{5,})-of-(\d{5,})\.safetensors", name)
        if match:
            parts[int(match[1])] = (int(match[2]), record)
    if parts:
        count = next(iter(parts.values()))[0]
        if sorted(parts) != list(range(1, count + 1)) or any(of != count for of, _ in parts.values()):
            raise CheckpointError(f"{stem}: got the parts {sorted(parts)}, expected 1 to {count}")
        return [parts[number][1] for number in sorted(parts)]
    own = re.compile(re.escape(stem) + r"(_part_of_rank_\d+|_undivided)\.safetensors")
    return [record for name, record in sorted(records.items()) if own.fullmatch(name)]


class Assembly:
    """A tensor that is assembled from slices."""

    def __init__(self, dtype, shape):
        self.dtype, self.shape = dtype, shape
        self.width = DTYPE_BYTES[dtype]
        self.data = np.zeros(int(np.prod(shape, dtype=np.int64)) * self.width, dtype=np.uint8)
        self.ranges = []

    def add(self, where, begin, entry, shape):
        end = begin * self.width + entry.data.size
        if entry.dtype != self.dtype or shape != self.shape or end > self.data.size:
            raise CheckpointError(f"{where}: dtype, shape or position does not fit the tensor's other slices")
        self.data[begin * self.width : end] = entry.data
        self.ranges.append((begin * self.width, end))

    def finish(self, where):
        next_byte = 0
        for begin, end in sorted(item for item in self.ranges if item[0] < item[1]):
            if begin != next_byte:
                raise CheckpointError(f"{where}: slices {'overlap' if begin < next_byte else 'leave a gap'}")
            next_byte = end
        if next_byte != self.data.size:
            raise CheckpointError(f"{where}: got {next_byte} of {self.data.size} bytes")
        return Tensor(self.dtype, self.shape, self.data)


def expect_all_hosts(manifests):
    first = manifests[0]["meta"]
    if any(manifest["meta"]["save_id"] != first["save_id"] for manifest in manifests):
        raise CheckpointError("the folders are from different saves; expected one save_id")
    ranks = sum(manifest["world_size"] for manifest in manifests)
    if ranks != first["processes"]:
        raise CheckpointError(f"got the files of {ranks} ranks, expected {first['processes']}; give the folder of each host")


def read_set(folders, stem="model"):
    """Returns all tensors of a set, by name. `folders`: the checkpoint, or its folder on each host."""
    found = {}
    empty = True
    manifests = [read_manifest(Path(folder)) for folder in folders]
    for number, (folder, manifest) in enumerate(zip(map(Path, folders), manifests)):
        for record in files_of(manifest, stem):
            empty = False
            if "_part_of_rank_" in record["name"]:
                expect_all_hosts(manifests)
            if number > 0 and "_part_of_rank_" not in record["name"]:
                continue  # Each host has a copy of replicated data.
            metadata, tensors = parse_safetensors(record["name"], read_listed(folder, record))
            slices = json.loads(metadata.get(SLICES_KEY) or metadata.get(PART_KEY) or "{}")
            for name, entry in tensors.items():
                where = f"{record['name']}: {name}"
                shape = slices[name]["shape"] if name in slices else entry.shape
                begin = slices[name]["begin"] if name in slices else 0
                if PART_KEY in metadata and name not in slices and name in found:
                    continue  # A counter, which each rank with a slice writes.
                if name not in found:
                    found[name] = Assembly(entry.dtype, shape)
                found[name].add(where, begin, entry, shape)
    if empty:
        raise CheckpointError(f"{folders[0]}: has no tensors named {stem}")
    return {name: found[name].finish(f"{stem}: {name}") for name in sorted(found)}


# --- values


def as_float32(tensor):
    """Converts float16 and bfloat16 to float32; returns other tensors unchanged."""
    if tensor.dtype == "BF16":
        values = tensor.data.view("<u2").astype("<u4") << 16
    elif tensor.dtype == "F16":
        values = tensor.data.view("<f2").astype("<f4")
    else:
        return tensor
    return Tensor("F32", tensor.shape, values.view(np.uint8))


def write_safetensors(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    order = sorted(tensors, key=lambda name: (-DTYPE_BYTES[tensors[name].dtype], name))
    for name in order:
        size = tensors[name].data.size
        header[name] = {"dtype": tensors[name].dtype, "shape": tensors[name].shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            file.write(tensors[name].data.tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="+", help="the checkpoint folder, or that of each host")
    parser.add_argument("--set", default="model", metavar="STEM", help="model (default), model_1, optimizer, ...")
    parser.add_argument("--output", metavar="FILE", help="write the tensors as float32 to this safetensors file")
    arguments = parser.parse_args()
    try:
        tensors = read_set(arguments.checkpoint, arguments.set)
    except (CheckpointError, OSError, KeyError, ValueError, struct.error) as error:
        sys.exit(f"read_checkpoint.py: {error}")
    for name, tensor in tensors.items():
        print(f"{name}\t{tensor.dtype}\t{tensor.shape}")
    if arguments.output:
        write_safetensors(arguments.output, {name: as_float32(tensor) for name, tensor in tensors.items()})


if __name__ == "__main__":
    main()
