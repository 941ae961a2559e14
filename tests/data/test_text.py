"""Text: how documents are read, and which of them are for validation."""

import gzip

import pytest

from eattn.data.text import Document, load_text, read_files, split, standard_library


def documents(count: int = 40) -> list[Document]:
    return [Document(f"{n}.txt", f"document {n} ".encode() * (5 + n % 7)) for n in range(count)]


def size(part) -> int:
    return sum(len(document.content) for document in part)


def test_standard_library_is_sorted_and_omits_optional_parts():
    found = standard_library()
    names = [document.name for document in found]
    assert {"ast.py", "asyncio/events.py", "json/decoder.py"} <= set(names)
    assert names == sorted(names, key=lambda name: name.split("/"))
    apart = {"test", "tests", "site-packages", "dist-packages", "idlelib", "encodings"}
    assert not [name for name in names if apart & set(name.split("/"))]
    assert not [name for name in names if name.startswith("_sysconfigdata")]
    assert size(found) > 3_000_000
    assert all(document.content.decode() is not None for document in found)


def test_missing_standard_library_raises(tmp_path):
    (tmp_path / "few.py").write_text("pass")
    with pytest.raises(ValueError, match=r"not in .* \(1 files\): give text of your own, --text"):
        standard_library(tmp_path)


def test_folder_stands_for_all_its_files(tmp_path):
    (tmp_path / "b.txt").write_bytes(b"\xff\x00 any bytes")
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "z.txt").write_text("last")
    (tmp_path / "folder" / "deep" / "a.txt.gz").write_bytes(gzip.compress(b"first"))
    found = read_files([tmp_path / "b.txt", tmp_path / "folder"])
    assert [document.content for document in found] == [b"\xff\x00 any bytes", b"first", b"last"]
    assert found[1].name.endswith("a.txt.gz")


def test_missing_and_empty_files_raise(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing.txt").touch()
    with pytest.raises(ValueError, match=r".*gone.txt does not exist"):
        read_files([tmp_path / "gone.txt"])
    with pytest.raises(ValueError, match=r"the folder .*empty has none"):
        read_files([tmp_path / "empty"])
    with pytest.raises(ValueError, match=r"only empty files: .*nothing.txt"):
        read_files([tmp_path / "nothing.txt"])


def test_validation_has_about_the_share_of_bytes():
    every = documents()
    text = split(every, share=0.2)
    assert 0.1 < size(text.validation) / size(every) <= 0.2
    assert sorted(text.train + text.validation) == sorted(every)
    order = {document: place for place, document in enumerate(every)}
    for part in (text.train, text.validation):
        assert [order[document] for document in part] == sorted(order[d] for d in part)


def test_split_depends_on_the_contents_only():
    text = split(documents())
    moved = [Document(f"elsewhere/{name}", content) for name, content in reversed(documents())]
    other = split(moved)
    assert {d.content for d in other.validation} == {d.content for d in text.validation}
    assert split(documents(41)).fingerprint != text.fingerprint
    assert other.fingerprint != text.fingerprint  # another order is another run


def test_copies_and_empty_documents_are_left_out():
    copies = [Document(f"copy {name}", content) for name, content in documents()]
    text = split([*documents(), *copies, Document("empty", b"")])
    assert text == split(documents())


def test_long_document_is_not_chosen_for_validation():
    long = Document("long", b"long " * 10_000)
    text = split([*documents(), long], share=0.05)
    assert long in text.train
    assert len(text.validation) > 3
    assert [d.name for d in split([long, Document("short", b"x")]).validation] == ["short"]


def test_single_document_is_split_after_a_line():
    book = Document("book", b"".join(b"line %d\n" % n for n in range(100)))
    text = split([book, book])
    assert text.train[0].content + text.validation[0].content == book.content
    assert text.validation[0].content.startswith(b"line 9")
    assert 0.03 < size(text.validation) / len(book.content) < 0.08
    assert size(split([Document("a", b"ab")]).validation) == 1  # no lines to cut at


def test_invalid_input_raises():
    with pytest.raises(ValueError, match="no document with content"):
        split([Document("a", b"")])
    with pytest.raises(ValueError, match="a has a single byte"):
        split([Document("a", b"x")])
    with pytest.raises(ValueError, match=r"share must be above 0 and below 1, got 1.0"):
        split(documents(), share=1.0)


def test_load_text_reads_files_or_the_library(tmp_path):
    for name, content in documents():
        (tmp_path / name).write_bytes(content)
    assert len(load_text([tmp_path]).train) < 40
    text = load_text()
    assert 0.03 < size(text.validation) / size(text.train + text.validation) <= 0.05
