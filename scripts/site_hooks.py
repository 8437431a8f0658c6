# SPDX-License-Identifier: Apache-2.0
"""Hooks of mkdocs.yml: pages from outside of docs/, and Markdown as GitHub reads it.

README.md, CONTRIBUTING.md and CHANGELOG.md are pages of the site. Any other file of the repository that a page links
to becomes a page below source/, and build/api, the output of doxygen, is copied to api/.
"""
import logging
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
LOG = logging.getLogger("mkdocs.hooks.site")
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]*)(#[^)\s]*)?(\))")
NAME_OF_PAGE = re.compile(r"\[(?:docs/)?[\w-]+\.md\]\(")
LANGUAGES = {".cpp": "cpp", ".h": "cpp", ".py": "python", ".yaml": "yaml", ".yml": "yaml"}

_repository_paths = {}  # Of pages that are not in docs/, by their path in the site.


def lines_with_fences(text):
    """Yields each line, and whether it is in a block of code between fences."""
    fence = None
    for line in text.split("\n"):
        mark = re.match(r" *(```+|~~~+)", line)
        if fence is None and mark:
            fence = mark[1]
            yield line, True
        elif fence is not None:
            yield line, True
            if line.strip() == fence:
                fence = None
        else:
            yield line, False


def links_of(text):
    for line, in_code in lines_with_fences(text):
        if not in_code:
            yield from (match[2] for match in LINK.finditer(line))


def repository_path(page, target):
    """Returns the path in the repository of a link; None for an address or a place on the same page."""
    if not target or re.match(r"[a-z]+:", target):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def site_path(path):
    """Returns the path in the site of a file in the repository."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"


def text_of_page(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    return f"# {path}\n\n````{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}````\n"


def on_files(files, config):
    wanted = [*PAGES, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    seen = set(wanted)
    while wanted:
        path = wanted.pop()
        if path in PAGES or not path.startswith("docs/"):
            _repository_paths[site_path(path)] = path
            files.append(File.generated(config, site_path(path), content=text_of_page(path)))
        if not path.endswith(".md"):
            continue
        for target in links_of((ROOT / path).read_text(encoding="utf-8")):
            linked = repository_path(path, target)
            if linked and linked not in seen and not linked.startswith("docs/") and (ROOT / linked).is_file():
                seen.add(linked)
                wanted.append(linked)
    api = ROOT / "build/api"
    for file in sorted(api.rglob("*")) if api.is_dir() else []:
        if file.is_file():
            files.append(File.generated(config, f"api/{file.relative_to(api)}", abs_src_path=str(file)))
    return files


def title_of(path):
    """Returns the first heading of a page."""
    return re.search(r"^# (.+)$", (ROOT / path).read_text(encoding="utf-8"), re.M)[1]


def with_site_links(line, page, own):
    """Replaces the paths of links in the repository by those in the site, and names of files by titles of pages."""

    def replaced(match):
        path = repository_path(page, match[2])
        if path is None or path.startswith("docs/api/"):
            return match[0]
        if (ROOT / path).is_dir():  # A folder is no page.
            return match[1].removesuffix("](").removeprefix("[")
        relative = posixpath.relpath(site_path(path), posixpath.dirname(own) or ".")
        label = match[1]
        if NAME_OF_PAGE.fullmatch(label) and (ROOT / path).is_file():
            label = f"[{title_of(path)}]("
        return f"{label}{relative}{match[3] or ''}{match[4]}"

    return LINK.sub(replaced, line)


def nested_deeper(lines):
    """Indents lists for Python-Markdown, which expects four columns a level where GitHub expects two or three.

    It also expects an empty line between a paragraph and the list item after it."""
    levels = []  # The columns of the texts of the open items.
    after_empty_line, in_item = True, False  # in_item: the line before belongs to the first paragraph of an item.
    for line, in_code in lines:
        text = line.lstrip(" ")
        column = len(line) - len(text)
        if not text:
            after_empty_line, in_item = True, False
            yield line
            continue
        item = None if in_code else re.match(r"(?:[-*]|\d+\.) +", text)
        while levels and column < levels[-1] and (item or after_empty_line or in_code):
            levels.pop()
        if item and not after_empty_line and not in_item:
            yield ""
        yield " " * (4 * len(levels) + max(0, column - (levels[-1] if levels else 0))) + text
        if item:
            levels.append(column + len(item[0]))
        in_item = bool(item) or in_item
        after_empty_line = False


def on_page_markdown(markdown, page, **_):
    own = page.file.src_uri
    path = _repository_paths.get(own, f"docs/{own}")
    lines = []
    for line, in_code in lines_with_fences(markdown):
        if not in_code:
            line = with_site_links(line, path, own)
            if line.startswith("|"):  # Python-Markdown keeps the backslash of `a\|b` in a table.
                line = re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), line)
        lines.append((line, in_code))
    return "\n".join(nested_deeper(lines))


def on_page_content(html, page, **_):
    """Warns if lists or tables of the Markdown are not lists and tables of the page."""
    plain = [line for line, in_code in lines_with_fences(page.markdown) if not in_code]
    items = sum(bool(re.match(r"(?: {4})*(?:[-*]|\d+\.) +\S", line)) for line in plain)
    tables = sum(bool(re.match(r"\|[-:| ]+\|$", line)) for line in plain)
    if html.count("<li>") != items:
        LOG.warning("%s has %d list items; expected %d", page.file.src_uri, html.count("<li>"), items)
    if html.count("<table>") != tables:
        LOG.warning("%s has %d tables; expected %d", page.file.src_uri, html.count("<table>"), tables)
    return html
