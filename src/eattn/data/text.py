"""Text to train a language model on: documents as bytes, some of them kept for validation.

The documents are files of the user, or the sources of Python's standard library, which exist
wherever Python does.
"""

import hashlib
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from eattn.data.files import read_bytes

# Folders of the standard library that distributions omit or package separately, or that hold
# tables and prose instead of programs.
OMITTED = {
    *("site-packages", "dist-packages", "test", "tests", "idle_test", "__phello__", "ensurepip"),
    *("idlelib", "tkinter", "turtledemo", "lib2to3", "distutils", "encodings", "pydoc_data"),
}
LEAST = 20  # documents of a complete standard library
VALIDATION_SHARE = 0.05  # share of the bytes


class Document(NamedTuple):
    """Content of a file, and its name."""

    name: str
    content: bytes


@dataclass(frozen=True)
class Text:
    """Documents for training and for validation, all of them different."""

    train: tuple[Document, ...]
    validation: tuple[Document, ...]

    @property
    def fingerprint(self) -> str:
        """Hash of the contents and of their order."""
        digest = hashlib.sha256()
        for part in (self.train, self.validation):
            for document in part:
                digest.update(hashlib.sha256(document.content).digest())
            digest.update(b"|")
        return digest.hexdigest()[:16]


def load_text(files: Sequence[Path] = (), *, share: float = VALIDATION_SHARE) -> Text:
    """Read these files, or the standard library, and split the documents.

    >>> text = load_text()
    >>> len(text.train) > len(text.validation) > 0
    True
    """
    return split(read_files(files) if files else standard_library(), share=share)


def read_files(files: Sequence[Path]) -> list[Document]:
    """Read each file, decompressed if its name ends with .gz; a folder stands for its files."""
    found = []
    for path in files:
        if not path.exists():
            raise ValueError(f"text must be a file or a folder, {path} does not exist")
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        documents = [Document(str(each), read_bytes(each)) for each in inside if not each.is_dir()]
        if not documents:
            raise ValueError(f"text must be files, the folder {path} has none")
        found += documents
    if not any(document.content for document in found):
        raise ValueError(f"text must not be empty, got only empty files: {files[0]} …")
    return found


def standard_library(root: Path | None = None) -> list[Document]:
    """Read the sources of Python's standard library, sorted by name.

    Tests and optional parts are omitted, so that the same version of Python has nearly the same
    text on every machine.
    """
    root = Path(sysconfig.get_paths()["stdlib"]) if root is None else root
    found = []
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).parts):
        name = path.relative_to(root)
        if OMITTED.isdisjoint(name.parts) and not name.parts[0].startswith(
            ("config-", "_sysconfig")
        ):
            found.append(Document(name.as_posix(), path.read_bytes()))
    if len(found) < LEAST:
        raise ValueError(
            f"the sources of Python's standard library are not in {root} ({len(found)} files): "
            "give text of your own, --text FILE"
        )
    return found


def split(documents: Iterable[Document], *, share: float = VALIDATION_SHARE) -> Text:
    """Choose documents with about `share` of the bytes for validation, by their content alone.

    Empty documents and copies are left out: a copy in both parts would spoil the validation. Of a
    single document the end is used.

    >>> text = split([Document("a", b"one"), Document("b", b"one"), Document("c", b"two")])
    >>> len(text.train), len(text.validation)
    (1, 1)
    """
    if not 0 < share < 1:
        raise ValueError(f"share must be above 0 and below 1, got {share}")
    unique: dict[bytes, Document] = {}
    for document in documents:
        if document.content:
            unique.setdefault(hashlib.sha256(document.content).digest(), document)
    if not unique:
        raise ValueError("text must not be empty, got no document with content")
    if len(unique) == 1:
        return _split_one(*unique.values(), share=share)
    sizes = {key: len(document.content) for key, document in unique.items()}
    room, chosen = share * sum(sizes.values()), set()
    for key in sorted(unique):
        if sizes[key] <= room:  # skips a document that would be all of the validation
            chosen.add(key)
            room -= sizes[key]
    chosen = chosen or {min(unique, key=lambda key: (sizes[key], key))}
    return Text(
        tuple(document for key, document in unique.items() if key not in chosen),
        tuple(document for key, document in unique.items() if key in chosen),
    )


def _split_one(document: Document, *, share: float) -> Text:
    """Split after a line if there are lines."""
    name, content = document
    if len(content) < 2:
        raise ValueError(f"{name} has a single byte, which cannot be split")
    at = min(max(1, round((1 - share) * len(content))), len(content) - 1)
    at = (content.rfind(b"\n", 0, at) + 1) or at
    return Text((Document(name, content[:at]),), (Document(f"the end of {name}", content[at:]),))
