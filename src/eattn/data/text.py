"""Text to learn a language from: documents as bytes, kept apart, some of them held out.

Files of the user's own, or the sources of Python's standard library, which are wherever Python is.
"""

import hashlib
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from eattn.data.files import read_bytes

# Folders of the standard library that distributions leave out or package apart, and those that
# hold tables and prose instead of programs.
APART = {
    *("site-packages", "dist-packages", "test", "tests", "idle_test", "__phello__", "ensurepip"),
    *("idlelib", "tkinter", "turtledemo", "lib2to3", "distutils", "encodings", "pydoc_data"),
}
LEAST = 20  # documents; fewer are remains of a library
HELD_OUT = 0.05  # of the bytes


class Document(NamedTuple):
    name: str
    content: bytes


@dataclass(frozen=True)
class Text:
    """Documents to learn from, and those held out to judge by: no two of them the same."""

    learnt: tuple[Document, ...]
    held_out: tuple[Document, ...]

    @property
    def fingerprint(self) -> str:
        """Tells this text from any other."""
        digest = hashlib.sha256()
        for part in (self.learnt, self.held_out):
            for document in part:
                digest.update(hashlib.sha256(document.content).digest())
            digest.update(b"|")
        return digest.hexdigest()[:16]


def load_text(files: Sequence[Path] = (), *, share: float = HELD_OUT) -> Text:
    """The documents of these files, or of the standard library, some of them held out.

    >>> text = load_text()
    >>> len(text.learnt) > len(text.held_out) > 0
    True
    """
    return split(read_files(files) if files else standard_library(), share=share)


def read_files(files: Sequence[Path]) -> list[Document]:
    """A document for each file, a gzipped one unpacked; a folder stands for all files in it."""
    found = []
    for path in files:
        if not path.exists():
            raise ValueError(f"text must be a file or a folder, there is none at {path}")
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        here = [each for each in inside if not each.is_dir()]
        if not here:
            raise ValueError(f"text must be files, the folder {path} has none")
        found += [Document(str(each), read_bytes(each)) for each in here]
    if not any(document.content for document in found):
        raise ValueError(f"text must not be empty, got nothing but empty files: {files[0]} …")
    return found


def standard_library(root: Path | None = None) -> list[Document]:
    """The sources of this Python's standard library, in the order of their names.

    Without tests and without what not every installation has, so that much the same text is found
    with the same version of Python anywhere.
    """
    root = Path(sysconfig.get_paths()["stdlib"]) if root is None else root
    found = []
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).parts):
        name = path.relative_to(root)
        if APART.isdisjoint(name.parts) and not name.parts[0].startswith(("config-", "_sysconfig")):
            content = path.read_bytes()
            if _is_utf8(content):
                found.append(Document(name.as_posix(), content))
    if len(found) < LEAST:
        raise ValueError(
            f"the sources of Python's standard library are not in {root}"
            f" ({len(found)} files): give text of your own, --text FILE"
        )
    return found


def split(documents: Iterable[Document], *, share: float = HELD_OUT) -> Text:
    """Hold out documents with about `share` of the bytes, chosen by what they say alone.

    Empty ones are left out, and copies, as one could be learnt by heart and judged by the other.
    Of a single document the end is held out.

    >>> text = split([Document("a", b"one"), Document("b", b"one"), Document("c", b"two")])
    >>> len(text.learnt), len(text.held_out)
    (1, 1)
    """
    if not 0 < share < 1:
        raise ValueError(f"share must be above 0 and below 1, got {share}")
    marked: dict[bytes, Document] = {}
    for document in documents:
        if document.content:
            marked.setdefault(hashlib.sha256(document.content).digest(), document)
    if len(marked) == 1:
        return _halves(*marked.values(), share=share)
    if not marked:
        raise ValueError("text must not be empty, got no document with anything in it")
    room = share * sum(len(document.content) for document in marked.values())
    chosen = set()
    for mark in sorted(marked):
        size = len(marked[mark].content)
        if size <= room:  # a long one would be all that is judged by
            chosen.add(mark)
            room -= size
    if not chosen:
        chosen.add(min(marked, key=lambda mark: (len(marked[mark].content), mark)))
    return Text(
        tuple(document for mark, document in marked.items() if mark not in chosen),
        tuple(document for mark, document in marked.items() if mark in chosen),
    )


def _halves(document: Document, *, share: float) -> Text:
    """The beginning, to the end of a line if it has lines, and the rest."""
    name, content = document
    if len(content) < 2:
        raise ValueError(f"{name} has a single byte: there is nothing to learn and to judge by")
    at = min(max(1, round((1 - share) * len(content))), len(content) - 1)
    at = (content.rfind(b"\n", 0, at) + 1) or at
    return Text((Document(name, content[:at]),), (Document(f"the end of {name}", content[at:]),))


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
