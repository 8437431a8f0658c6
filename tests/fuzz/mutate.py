# SPDX-License-Identifier: Apache-2.0
"""Generates random safetensors files. Most are almost valid, since others fail the first check.

A header is a tree whose objects are lists of pairs, so that keys can come twice, and which is written
with random whitespace and escapes. Raw is text that is written unchanged.
"""
import json

import seeds

NUMBERS = [
    "0", "1", "2", "3", "7", "8", "-1", "-0", "00", "01", "+1", "1.0", "1.5", "1e0", "1E2", "0x1", "1_0", "NaN",
    "Infinity", "127", "128", "255", "256", "65535", "4294967295", "4294967296", "2147483648", "100000000",
    "9007199254740993", "4611686018427387904", "9223372036854775807", "9223372036854775808",
    "18446744073709551615", "18446744073709551616", "340282366920938463463374607431768211456", "1e400",
]  # fmt: skip
NAMES = [
    "a", "b", "", "__metadata__", "dtype", "gr\u00f6\u00dfe", "\U0001d11e", "\0", "\x1f", "../x", "model.weight",
    "\u00e9", "e\u0301", "\x7f", "\ufffd",
]  # fmt: skip
SPACES = ["", "", "", " ", "\n", "\t", "\r\n", "   "]
BAD_SPACES = ["\v", "\f", "\0", "\u00a0", "\u2028", "\ufeff", "//\n", "/**/", ","]
VALUES = ["null", "true", "false", "{}", "[]", '""', '"a"', "[[]]", '{"a":{}}', "[1,2]", "1"]


class Raw(str):
    pass


class Obj(list):
    """Pairs of key and value."""


class Mutator:
    def __init__(self, rng):
        self.rng = rng
        self.originals = list(seeds.files())
        self.loose = False  # Whether the text being written has whitespace anywhere,
        self.escapes = 0.0  # and how many of the characters in its strings are escaped.

    def file(self):
        kind = self.rng.random()
        if kind < 0.25:
            return self.bytewise(self.rng.choice(self.originals))
        tree, data = self.good_tree()
        for _ in range(self.rng.choice([0, 0, 0, 1, 1, 1, 2, 3])):
            tree, data = self.change(tree, data)
        content = self.with_length(self.text(tree), data)
        return self.bytewise(content) if kind < 0.4 else content

    # --- good ones
    def good_tree(self):
        rng = self.rng
        tensors, end = [], 0
        for i in range(rng.choice([0, 1, 1, 2, 2, 3, 5, 12])):
            dtype = rng.choice(list(seeds.DTYPES) if rng.random() < 0.1 else seeds.WHOLE_DTYPES)
            shape = [rng.choice([0, 1, 1, 2, 3, 4, 8]) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 5]))]
            bits = seeds.DTYPES[dtype]
            for size in shape:
                bits *= size
            if bits > 64 * 1024:
                shape, bits = [0], 0
            begin, end = end, end + bits // 8
            fields = Obj([["dtype", dtype], ["shape", shape], ["data_offsets", [begin, end]]])
            rng.shuffle(fields)
            name = f"{self.name()}{i}" if rng.random() < 0.95 else self.name()
            tensors.append([name, fields])
        if rng.random() < 0.5:
            rng.shuffle(tensors)
        if rng.random() < 0.4:
            pairs = Obj([self.name() + str(i), self.name()] for i in range(rng.choice([0, 1, 3])))
            tensors.insert(rng.randrange(len(tensors) + 1), ["__metadata__", pairs])
        return Obj(tensors), seeds.data_of(end)

    def name(self):
        return self.rng.choice(NAMES)

    # --- changes to the tree
    def change(self, tree, data):
        rng = self.rng
        if isinstance(tree, Raw):
            return tree, data
        entries = [value for name, value in tree if name != "__metadata__" and isinstance(value, Obj)]
        entry = rng.choice(entries) if entries else None
        what = rng.randrange(18)
        if what == 0:
            return tree, data[: -rng.choice([1, 2, 8, 1000])]
        if what == 1:
            return tree, data + seeds.data_of(rng.choice([1, 2, 8, 1000]))
        if what == 2 and tree:  # Something twice, the same or with another value.
            name, value = rng.choice(tree)
            tree.insert(rng.randrange(len(tree) + 1), [name, value if rng.random() < 0.7 else Raw(rng.choice(VALUES))])
        elif what == 3:
            tree.insert(rng.randrange(len(tree) + 1), [self.name(), Raw(rng.choice(VALUES))])
        elif what == 4 and tree:
            tree.pop(rng.randrange(len(tree)))
        elif what == 5 and tree:
            rng.choice(tree)[1] = Raw(rng.choice(VALUES))
        elif what == 6:
            tree.insert(rng.randrange(len(tree) + 1), ["__metadata__", self.metadata()])
        elif what == 7:
            return Raw(rng.choice(VALUES)), data
        elif what == 8:
            opening = rng.choice(["{", "[", '{"a":', '{"a":{"x":[', '{"__metadata__":{"a":'])
            return Raw(opening * rng.choice([1, 60, 200])), data
        elif what == 9 and len(entries) > 1:  # Overlaps, holes, or two of equal place.
            source, target = self.offsets(rng.choice(entries)), self.offsets(entry)
            if source is not None and target is not None:
                target[:] = [self.number_near(number) for number in source] if rng.random() < 0.5 else source
        elif entry is not None:
            self.change_entry(tree, entry)
        return tree, data

    def change_entry(self, tree, entry):
        rng = self.rng
        if not entry:
            return
        what = rng.randrange(9)
        pair = rng.choice(entry)
        if what == 0:
            entry.append([pair[0], pair[1] if rng.random() < 0.5 else Raw(rng.choice(VALUES))])
        elif what == 1:
            key = rng.choice(["extra", "Dtype", "shape ", "", "offsets"])
            value = rng.choice([*VALUES, "[" * 100 + "]" * 100, "[" * 130 + "]" * 130])
            entry.insert(rng.randrange(len(entry) + 1), [key, Raw(value)])
        elif what == 2:
            entry.remove(pair)
        elif what == 3:
            pair[1] = Raw(rng.choice(VALUES + NUMBERS))
        elif what == 4:
            fields = dict(entry)
            if len(fields) == 3:  # A list instead of an object, which serde takes.
                values = [fields.get(key, 0) for key in ("dtype", "shape", "data_offsets")]
                for place in tree:
                    if place[1] is entry:
                        place[1] = values
        elif what == 5:
            for field in entry:
                if field[0] == "dtype":
                    other = rng.choice([*seeds.DTYPES, "u8", "U8 ", "F128", "", "I4"])
                    field[1] = Obj([[other, Raw("null")]]) if rng.random() < 0.3 else other
        else:
            lists = [value for _, value in entry if isinstance(value, list) and not isinstance(value, Obj)]
            if lists:
                self.change_numbers(rng.choice(lists))

    def change_numbers(self, numbers):
        rng = self.rng
        what = rng.randrange(6)
        if what == 0 or not numbers:
            numbers.insert(rng.randrange(len(numbers) + 1), Raw(rng.choice(NUMBERS + VALUES)))
        elif what == 1:
            numbers.pop(rng.randrange(len(numbers)))
        elif what == 2:
            at = rng.randrange(len(numbers))
            numbers[at] = self.number_near(numbers[at])
        elif what == 3:
            numbers.extend([1] * rng.choice([1, 60, 64, 70]))
        elif what == 4:
            rng.shuffle(numbers)
        else:
            numbers[rng.randrange(len(numbers))] = Raw(rng.choice(NUMBERS))

    def number_near(self, number):
        return number + self.rng.choice([-8, -1, 0, 1, 8]) if isinstance(number, int) else number

    def offsets(self, entry):
        found = [value for key, value in entry if key == "data_offsets" and isinstance(value, list)]
        return found[0] if found else None

    def metadata(self):
        rng = self.rng
        if rng.random() < 0.3:
            return Raw(rng.choice(VALUES))
        pairs = Obj([self.name(), self.name()] for _ in range(rng.randrange(4)))
        if rng.random() < 0.3:
            pairs.append([self.name(), Raw(rng.choice(VALUES + NUMBERS))])
        return pairs

    # --- writing
    def text(self, tree):
        rng = self.rng
        self.loose = rng.random() < 0.3
        self.escapes = rng.choice([0, 0, 0.2, 1])
        text = self.space() * (rng.random() < 0.1) + self.render(tree)
        text += rng.choice(["", "", " ", "   ", "\n", "x", "{}", "\0"] if rng.random() < 0.1 else ["", "  "])
        if rng.random() < 0.03:
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(BAD_SPACES) + text[at:]
        return text.encode("utf-8", "surrogatepass")

    def space(self):
        return self.rng.choice(SPACES) if self.loose else ""

    def render(self, value):
        if isinstance(value, Raw):
            return str(value)
        if isinstance(value, Obj):
            pairs = (f"{self.space()}{self.string(k)}{self.space()}:{self.space()}{self.render(v)}" for k, v in value)
            return "{" + ",".join(pairs) + self.space() + "}"
        if isinstance(value, list):
            return "[" + ",".join(self.space() + self.render(item) + self.space() for item in value) + "]"
        return self.string(value) if isinstance(value, str) else str(value)

    def string(self, text):
        rng = self.rng
        parts = []
        for c in text:
            if rng.random() < self.escapes:
                units = c.encode("utf-16-be")
                codes = [f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)]
                if rng.random() < 0.01:  # Half a pair, a digit too few, an escape there is not.
                    codes = rng.choice([["\\ud800"], ["\\udc00"], ["\\u00"], ["\\x41"], ["\\u00zz"]])
                parts.append("".join(codes).upper().replace("\\U", "\\u") if rng.random() < 0.2 else "".join(codes))
            elif rng.random() < 0.003:
                parts.append(c)  # Control characters as they are.
            else:
                parts.append(json.dumps(c, ensure_ascii=False)[1:-1])
        return '"' + "".join(parts) + '"'

    # --- bytes
    def with_length(self, header, data):
        content = seeds.file_of(header, data)
        if self.rng.random() < 0.03:
            near = [len(header) - 1, len(header) + 1, len(header) + len(data)]
            length = self.rng.choice([0, 1, *near, 2**63, 2**64 - 1])
            content = (length % 2**64).to_bytes(8, "little") + content[8:]
        return content

    def bytewise(self, content):
        rng = self.rng
        content = bytearray(content)
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            at = rng.randrange(len(content) + 1) if rng.random() < 0.7 else rng.randrange(min(len(content), 300) + 1)
            what = rng.randrange(5)
            if what == 0:
                content[at : at + 1] = bytes([rng.randrange(256)])
            elif what == 1:
                content[at:at] = bytes([rng.choice(b'{}[]",:0123456789 \0\n\\u\xff')])
            elif what == 2:
                del content[at : at + rng.choice([1, 1, 4, 50])]
            elif what == 3:
                source = rng.randrange(len(content) + 1)
                content[at:at] = content[source : source + rng.choice([1, 8, 40])]
            else:
                content[at : at + 1] = bytes([content[at] ^ 1 << rng.randrange(8)]) if at < len(content) else b""
        if len(content) >= 8 and rng.random() < 0.6:  # Else a changed length is all that is ever tried.
            end = content.rfind(b"}", 8, 8 + 20_000) + 1
            content[:8] = max(end - 8, 0).to_bytes(8, "little")
        return bytes(content)
