"""Locations of a dataset, and the order in which they are searched."""

import gzip
import hashlib
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from eattn.data import CATALOG, cache_dir, find, locate, look_up
from eattn.data.catalog import SHA256

needs_data = pytest.mark.skipif("EATTN_DATA" not in os.environ, reason="EATTN_DATA is not set")


def put(path: Path, content: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("layout", ["{set}/{file}", "{set}/{file}.gz", "{file}", "{file}.gz"])
@pytest.mark.parametrize(
    ("name", "split", "file"),
    [
        ("JapaneseVowels", "train", "JapaneseVowels_TRAIN.ts"),
        ("SCP2", "test", "SelfRegulationSCP2_TEST.ts"),
        ("ETTh2", None, "ETTh2.csv"),
        ("Traffic", None, "traffic_OT.csv"),
        ("Traffic", None, "traffic.csv"),
    ],
)
def test_every_layout_of_a_data_folder_is_found(cache, tmp_path, name, split, file, layout):
    path = put(tmp_path / "data" / layout.format(set=look_up(name).name, file=file))
    assert find(name, split, data_dir=tmp_path / "data", download=False) == path


def test_locations_are_searched_in_order(cache, tmp_path, monkeypatch):
    name = "JapaneseVowels_TRAIN.ts"
    module = import_module("eattn.data.locate")
    monkeypatch.setattr(module, "_shipped", lambda package: [tmp_path / package])
    monkeypatch.setenv("EATTN_DATA", str(tmp_path / "variable"))
    (tmp_path / "argument").mkdir()
    locations = {
        tmp_path / "argument": "data folder",
        tmp_path / "variable": "data folder",
        tmp_path / "aeon": "aeon",
        cache: "cache",
    }
    paths = [put(folder / "JapaneseVowels" / name) for folder in locations]
    for folder, path in zip(locations, paths, strict=True):
        here = tmp_path / "argument" if folder.name == "argument" else None
        found = locate("JAP", "train", data_dir=here)
        assert (found.path, found.where) == (path, locations[folder])
        path.unlink()
    assert locate("JAP", "train") is None


def test_japanese_vowels_of_aeon_match_the_checksum(monkeypatch):
    monkeypatch.delenv("EATTN_DATA", raising=False)
    for split, (file,) in look_up("JapaneseVowels").files.items():
        found = locate("JapaneseVowels", split)
        assert found.where == "aeon"
        assert hashlib.sha256(found.path.read_bytes()).hexdigest() == SHA256[file]


def test_aeon_is_found_without_importing_it():
    code = "import sys, eattn.data as d; d.locate('BasicMotions', 'train'); "
    code += "sys.exit(bool({'aeon', 'torch', 'pandas', 'pooch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_missing_data_folder_raises(cache, tmp_path, monkeypatch):
    with pytest.raises(NotADirectoryError, match=r"data folder must be a folder, got .*nowhere"):
        find("ETTh2", data_dir=tmp_path / "nowhere")
    monkeypatch.setenv("EATTN_DATA", str(tmp_path / "gone"))
    with pytest.raises(NotADirectoryError, match=r"EATTN_DATA must be a folder, got .*gone"):
        find("ETTh2")


def test_missing_dataset_error_names_the_command(cache):
    with pytest.raises(FileNotFoundError, match="download it with `eattn data get ETTh2`"):
        find("etth2", download=False)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("name", "split", "reason"),
    [
        ("JapaneseVowel", "train", "did you mean JapaneseVowels"),
        ("nothing like it", None, "known datasets are JapaneseVowels, SelfRegulationSCP1"),
        ("JAP", None, "split must be 'train' or 'test' for JapaneseVowels, got None"),
        ("JAP", "val", "must be 'train' or 'test' for JapaneseVowels, got 'val'"),
        ("ETTh2", "train", "split must be None for ETTh2, which is a single file, got 'train'"),
    ],
)
def test_wrong_name_or_split_raises(cache, name, split, reason):
    with pytest.raises(ValueError, match=reason):
        find(name, split, download=False)


@pytest.mark.parametrize(
    ("system", "variable", "folder"),
    [
        ("linux", "XDG_CACHE_HOME", ""),
        ("win32", "LOCALAPPDATA", ""),
        ("linux", None, ".cache"),
        ("darwin", None, "Library/Caches"),
        ("win32", None, "AppData/Local"),
    ],
)
def test_cache_is_in_the_user_cache_folder(monkeypatch, tmp_path, system, variable, folder):
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, str(tmp_path))
    assert cache_dir() == tmp_path / folder / "eattn" / "data"


@needs_data
@pytest.mark.parametrize("name", CATALOG)
def test_files_in_the_data_folder_match_their_checksums(name):
    known = CATALOG[name]
    for split in known.files:
        found = locate(name, split)
        if found is None or found.where != "data folder":
            pytest.skip(f"{name} is not in the data folder")
        opened = gzip.open if found.path.suffix == ".gz" else open
        with opened(found.path, "rb") as file:
            got = hashlib.sha256(file.read()).hexdigest()
        assert SHA256.get(found.path.name.removesuffix(".gz"), got) == got
