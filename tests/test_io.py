"""Atomic writes leave either the new or the previous content, and no temporary files."""

import os

import pytest

from eattn._io import replace_directory, replace_file, write_json, write_text


def fail(*args: object) -> None:
    raise OSError(28, "No space left on device")


def test_written_files_replace_previous_ones(tmp_path):
    write_text(tmp_path / "a.txt", "old ü")
    write_text(tmp_path / "a.txt", "new ü")
    write_json(tmp_path / "b.json", {"x": [1, None]})
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "new ü"
    assert (tmp_path / "b.json").read_text() == '{\n "x": [\n  1,\n  null\n ]\n}\n'
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b.json"]


def test_nan_is_not_valid_json(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failed_write_keeps_the_previous_file(tmp_path, monkeypatch, call):
    write_text(tmp_path / "a.txt", "old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space"):
        write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_remains_of_a_killed_write_are_removed(tmp_path):
    (tmp_path / ".a.txt.partial").write_text("remains")
    with replace_file(tmp_path / "a.txt") as partial, open(partial, "a") as file:
        file.write("new")
    assert (tmp_path / "a.txt").read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_directory_is_replaced_as_a_whole(tmp_path):
    target = tmp_path / "deep" / "model"
    for name in ("old", "new"):
        with replace_directory(target) as fresh:
            (fresh / "sub").mkdir()
            (fresh / "sub" / name).touch()
    assert os.listdir(target / "sub") == ["new"]
    assert os.listdir(target.parent) == ["model"]


@pytest.mark.parametrize("call", ["fsync", "second replace", "block"])
def test_failed_replacement_keeps_the_previous_directory(tmp_path, monkeypatch, call):
    target, replace, calls = tmp_path / "model", os.replace, []
    target.mkdir()
    (target / "old").touch()

    def fail_second(*paths):
        calls.append(paths)
        return fail() if len(calls) == 2 else replace(*paths)

    if call != "block":
        monkeypatch.setattr(os, call.split()[-1], fail if call == "fsync" else fail_second)
    with pytest.raises(OSError, match="No space"), replace_directory(target) as fresh:
        (fresh / "new").touch()
        if call == "block":
            fail()
    assert os.listdir(target) == ["old"]
    assert os.listdir(tmp_path) == ["model"]
