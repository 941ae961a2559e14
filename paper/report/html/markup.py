"""The little Markdown our tables are written in -> parts of a page.

README and page show the same tables, so both are made from the same text: tables with pipes, lists
with dashes, paragraphs; `code` and escaped stars within them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup, escape

CODE = re.compile(r"`([^`]+)`")
SPLIT = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Table:
    """A head and lines of as many cells."""

    head: list[str]
    lines: list[list[str]]


@dataclass(frozen=True)
class Bullets:
    items: list[str]


@dataclass(frozen=True)
class Paragraph:
    text: str


Part = Table | Bullets | Paragraph


def parts(text: str) -> Iterator[Part]:
    """The tables, lists and paragraphs of a text, in their order."""
    kept: list[str] = []
    for line in [*text.splitlines(), ""]:
        if kept and _kind(line) != _kind(kept[0]):
            yield _part(kept)
            kept = []
        if line.strip():
            kept.append(line)


def inline(text: str) -> Markup:
    """One line or cell of it: escaped, with `code` marked."""
    plain = str(escape(text)).replace("\\*", "*").replace("\\|", "|")
    return Markup(CODE.sub(r"<code>\1</code>", plain))


def _kind(line: str) -> str:
    return line[0] if line[:1] in ("|", "-") else ("text" if line.strip() else "")


def _part(lines: list[str]) -> Part:
    match _kind(lines[0]):
        case "|":
            head, _, *rest = ([cell.strip() for cell in _cells(line)] for line in lines)
            return Table(head, rest)
        case "-":
            return Bullets([line.removeprefix("- ") for line in lines])
    return Paragraph(" ".join(lines))


def _cells(line: str) -> list[str]:
    return SPLIT.split(line.strip())[1:-1]
