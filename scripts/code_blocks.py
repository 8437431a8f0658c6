# SPDX-License-Identifier: Apache-2.0
"""Finds the blocks of code in README.md, docs/ and examples/. A comment directly above a block says that it shows a file:

    <!-- code: examples/recipes/seeds.cpp -->
    ```cpp
"""
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^(?:<!-- code: (?P<file>\S+) -->\n)?(?P<fence>```+)(?P<language>\w*)\n(?P<text>.*?)^(?P=fence)$", re.M | re.S)


class Block(NamedTuple):
    page: Path  # In the repository.
    line: int  # Of the first line of the text.
    language: str
    text: str
    file: str | None  # The file that the block shows.


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*/*.md"))]


def blocks_of(page):
    """Yields the blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        line = text[: found.start("text")].count("\n") + 1
        yield Block(page.relative_to(ROOT), line, found["language"], found["text"], found["file"])


def own_blocks(language):
    """Yields the blocks of all pages in a language that show no file. The tests compile or run the files."""
    for page in pages():
        yield from (block for block in blocks_of(page) if block.language == language and not block.file)
