#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Lockstep's safetensors parser with the reference implementation, on randomly mutated files.

    differential.py ACCEPTS                      20,000 files, always the same
    differential.py ACCEPTS --seconds 60         other files, for that time; prints the seed
    differential.py ACCEPTS --seed 7 --cases 50

ACCEPTS is the program made of accepts.cpp. What must hold for every file: if ours accepts it, so does
the reference, with equal contents; if only the reference does, the file is of a kind in STRICTER. Exits 1,
with the files that broke this in the folder of --keep, if there are any.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import mutate  # noqa: E402
import safetensors  # noqa: E402
import seeds  # noqa: E402

# Reasons why our parser may refuse a file that the reference accepts: a part of our message, and a check of the
# parsed header that confirms it.
STRICTER = {
    "a name or key given twice": (["occurs twice", "has the key "], lambda seen: seen.duplicates),
    "a field the format does not have": (["the field "], lambda seen: seen.unknown_fields),
    "whitespace before {": (["begins with {"], lambda seen: seen.text[:1] in b" \t\r\n"),
    "more than 64 dimensions": (["more than 64 dimensions"], lambda seen: seen.many_dimensions),
    "a shape no memory holds": (["too many elements", "is too large"], lambda seen: seen.huge),
    "a dtype that shares bytes": (["packs several elements"], lambda seen: seen.sub_byte),
    "a tensor given as a list": (["an array is not allowed"], lambda seen: seen.tensor_as_list),
    "a dtype given as an object": (["an object is not allowed"], lambda seen: seen.dtype_as_object),
}
SUB_BYTE = {"F4", "F6_E2M3", "F6_E3M2"}


class Ours:
    """Runs the parser in C++ on one file at a time."""

    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, content):
        self.process.stdin.write(struct.pack("<Q", len(content)) + content)
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"our parser died with {self.process.wait()}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            raise RuntimeError(f"our parser ended with {self.process.returncode}")


class Reference:
    """PyPI's safetensors. Both of its ways in must accept a file."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "file.safetensors")

    def tensors(self, content):
        """{name: (dtype, shape, data)}, or None and why not."""
        try:
            return {
                name: (view["dtype"], view["shape"], bytes(view["data"]))
                for name, view in safetensors.deserialize(content)
            }, ""
        except BaseException as error:  # A panic in Rust is no Exception.
            if isinstance(error, KeyboardInterrupt):
                raise
            return None, f"{type(error).__name__}: {error}"

    def metadata(self, content):
        """The metadata, or None and why not."""
        with open(self.path, "wb") as file:
            file.write(content)
        try:
            with safetensors.safe_open(self.path, framework="np") as opened:
                return opened.metadata() or {}, ""
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return None, f"{type(error).__name__}: {error}"


class Seen:
    """What Python's own JSON reader finds in a header, which the reference has accepted."""

    def __init__(self, content):
        length = struct.unpack("<Q", content[:8])[0]
        self.text = content[8 : 8 + length]
        self.duplicates = self.unknown_fields = self.many_dimensions = False
        self.huge = self.sub_byte = self.tensor_as_list = self.dtype_as_object = False

        class Pairs(list):
            pass

        root = json.loads(self.text.decode(), object_pairs_hook=Pairs)
        self.note_duplicates(root)
        for name, value in root:
            if name == "__metadata__":
                self.note_duplicates(value or [])
            elif isinstance(value, Pairs):
                self.note_tensor(dict(value))
            else:
                self.tensor_as_list = True
                self.note_tensor(dict(zip(("dtype", "shape", "data_offsets"), value, strict=False)))

    def note_duplicates(self, pairs):
        self.duplicates |= len({key for key, _ in pairs}) < len(pairs)

    def note_tensor(self, fields):
        dtype, shape = fields["dtype"], fields["shape"]
        if not isinstance(dtype, str):
            self.dtype_as_object = True
            dtype = dtype[0][0]
        self.unknown_fields |= len(fields) > 3
        self.many_dimensions |= len(shape) > 64
        self.sub_byte |= dtype in SUB_BYTE
        bits = seeds.DTYPES[dtype]
        for size in shape:
            bits *= max(size, 1)
        self.huge |= bits >= 2**63


class Comparison:
    def __init__(self, ours, reference):
        self.ours, self.reference = ours, reference
        self.counts = collections.Counter()

    def fault(self, content):
        """Why this file breaks the rules; empty if it does not."""
        mine = self.ours.ask(content)
        theirs, why_not = self.reference.tensors(content)
        if not mine["accepted"]:
            if theirs is None:
                self.counts["both refuse"] += 1
                return ""
            return self.fault_of_strictness(content, mine["why"])
        metadata = None
        if theirs is not None:
            metadata, why_not = self.reference.metadata(content)
        if metadata is None:
            return f"ours accepts it, and the reference refuses it: {why_not}"
        self.counts["both accept"] += 1
        if mine["metadata"] != metadata:
            return f"the metadata differ; ours {mine['metadata']}, the reference's {metadata}"
        read = {
            item["name"]: (item["dtype"], item["shape"], content[item["begin"] : item["end"]])
            for item in mine["tensors"]
        }
        return "" if read == theirs else f"the tensors differ; ours {read}, the reference's {theirs}"

    def fault_of_strictness(self, content, why):
        seen = Seen(content)
        for kind, (says, holds) in STRICTER.items():
            if any(words in why for words in says) and holds(seen):
                self.counts[f"only the reference accepts: {kind}"] += 1
                return ""
        return f"only the reference accepts it, and this is no documented reason: {why}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("accepts")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--keep", type=pathlib.Path, default=pathlib.Path("."))
    options = parser.parse_args()
    seed = options.seed
    if seed is None:
        seed = 20_260_801 if options.seconds is None else random.SystemRandom().randrange(2**32)
    print(f"differential: safetensors {safetensors.__version__}, seed {seed}", flush=True)
    if not safetensors.__version__.startswith("0.8."):
        sys.exit("differential: expected safetensors 0.8, the reference of our parser; try ./dev fuzz")

    mutator = mutate.Mutator(random.Random(seed))
    end = None if options.seconds is None else time.monotonic() + options.seconds
    faults = cases = 0
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(options.accepts)
        comparison = Comparison(ours, Reference(folder))
        originals = list(seeds.files())
        while cases < len(originals) or (cases < options.cases if end is None else time.monotonic() < end):
            content = originals[cases] if cases < len(originals) else mutator.file()
            cases += 1
            fault = comparison.fault(content)
            if fault:
                faults += 1
                kept = options.keep / f"differential-{seed}-{cases}.safetensors"
                kept.write_bytes(content)
                print(f"{kept}: {fault}"[:2000])
                if faults == 20:
                    break
        ours.close()
    for kind, count in sorted(comparison.counts.items()):
        print(f"{count:8d}  {kind}")
    print(f"{cases:8d}  files, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
