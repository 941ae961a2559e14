"""The order in which a set is looked for, and what a download leaves."""

import gzip
import hashlib
import io
import os
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from eattn.data import CATALOG, cache_dir, find, get, locate, look_up
from eattn.data.catalog import File
from eattn.data.download import DownloadError, digest

TRAIN, TEST = b"the cases to train on", b"the cases to test on"
UWG = "UWaveGestureLibrary"


def zipped(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def publish(monkeypatch, url: str, name: str, *contents: bytes) -> None:
    """Let the catalog say that a set is at `url`, with the checksums of these contents."""
    known = CATALOG[name]
    files = {
        split: (File(names[0].name, hashlib.sha256(content).hexdigest()),)
        for (split, names), content in zip(known.files.items(), contents, strict=True)
    }
    monkeypatch.setitem(CATALOG, name, replace(known, url=url, files=files))


@pytest.fixture
def uwg(site, monkeypatch):
    """UWaveGestureLibrary as a small zip on the server."""
    publish(monkeypatch, site.url + ".zip", UWG, TRAIN, TEST)
    site.content = zipped(**{f"{UWG}_TRAIN.ts": TRAIN, f"{UWG}_TEST.ts": TEST, "other.txt": b""})
    return site


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
def test_every_layout_of_a_data_folder_is_known(cache, tmp_path, name, split, file, layout):
    path = put(tmp_path / "data" / layout.format(set=look_up(name).name, file=file))
    assert find(name, split, data_dir=tmp_path / "data", download=False) == path


def test_the_order_is_argument_variable_package_cache(cache, tmp_path, monkeypatch):
    name = "JapaneseVowels_TRAIN.ts"
    monkeypatch.setattr("eattn.data.locate._shipped", lambda package: [tmp_path / package])
    monkeypatch.setenv("EATTN_DATA", str(tmp_path / "variable"))
    (tmp_path / "argument").mkdir()
    places = {
        tmp_path / "argument": "data folder",
        tmp_path / "variable": "data folder",
        tmp_path / "aeon": "aeon",
        cache: "cache",
    }
    paths = [put(place / "JapaneseVowels" / name) for place in places]
    for place, path in zip(places, paths, strict=True):
        here = tmp_path / "argument" if place.name == "argument" else None
        found = locate("JAP", "train", data_dir=here)
        assert found is not None
        assert (found.path, found.where) == (path, places[place])
        path.unlink()
    assert locate("JAP", "train") is None


def test_aeon_ships_japanese_vowels_as_published(monkeypatch):
    monkeypatch.delenv("EATTN_DATA", raising=False)
    for split, (file,) in look_up("JapaneseVowels").files.items():
        found = locate("JapaneseVowels", split)
        assert found is not None
        assert found.where == "aeon"
        assert digest(found.path) == file.sha256


def test_aeon_is_found_without_importing_it():
    code = "import sys, eattn.data as d; d.locate('BasicMotions', 'train'); "
    code += "sys.exit('aeon' in sys.modules or 'torch' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_data_folder_that_is_none_is_named(cache, tmp_path, monkeypatch):
    with pytest.raises(NotADirectoryError, match=r"data folder must be a folder, got .*nowhere"):
        find("ETTh2", data_dir=tmp_path / "nowhere")
    monkeypatch.setenv("EATTN_DATA", str(tmp_path / "gone"))
    with pytest.raises(NotADirectoryError, match=r"EATTN_DATA must be a folder, got .*gone"):
        find("ETTh2")


def test_without_download_it_says_how_to_get_it(cache):
    with pytest.raises(FileNotFoundError, match="`eattn data get ETTh2` downloads it"):
        find("etth2", download=False)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("name", "split", "reason"),
    [
        ("JapaneseVowel", "train", "did you mean JapaneseVowels"),
        ("nothing like it", None, "known are JapaneseVowels, SelfRegulationSCP1"),
        ("JAP", None, "split of JapaneseVowels must be 'train' or 'test', got None"),
        ("JAP", "val", "must be 'train' or 'test', got 'val'"),
        ("ETTh2", "train", "ETTh2 is one file, its split must be None, got 'train'"),
    ],
)
def test_a_wrong_name_or_split_says_what_would_do(cache, name, split, reason):
    with pytest.raises(ValueError, match=reason):
        find(name, split, download=False)


def test_one_download_brings_both_splits_and_is_not_repeated(uwg, cache):
    assert find("UWG", "train").read_bytes() == TRAIN
    assert find("UWG", "TEST").read_bytes() == TEST
    assert len(uwg.seen) == 1
    assert {path.name for path in (cache / UWG).iterdir()} == {f"{UWG}_TRAIN.ts", f"{UWG}_TEST.ts"}


def test_a_csv_is_stored_as_it_comes(site, cache, monkeypatch):
    site.content = b"date,OT\n2020-01-01,1\n"
    publish(monkeypatch, site.url, "ETTh2", site.content)
    assert find("ETTh2") == cache / "ETTh2" / "ETTh2.csv"
    assert (cache / "ETTh2" / "ETTh2.csv").read_bytes() == site.content


def test_get_puts_files_where_it_is_told(uwg, cache, tmp_path):
    paths = get(UWG, folder=tmp_path / "mine")
    assert paths == [tmp_path / "mine" / UWG / f"{UWG}_{part}.ts" for part in ("TRAIN", "TEST")]
    assert not cache.exists()


def test_a_gzipped_copy_counts_as_there(uwg, cache):
    for part, content in (("TRAIN", TRAIN), ("TEST", TEST)):
        put(cache / f"{UWG}_{part}.ts.gz", gzip.compress(content))
    assert [path.suffix for path in get(UWG)] == [".gz", ".gz"]
    assert uwg.seen == []


def test_paths_inside_an_archive_decide_nothing(uwg, cache, tmp_path):
    uwg.content = zipped(
        **{f"../../{UWG}_TRAIN.ts": TRAIN, f"/tmp/deep/{UWG}_TEST.ts": TEST, "../evil": b"x"}
    )
    get(UWG)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {f"cache/{UWG}/{UWG}_{part}.ts" for part in ("TRAIN", "TEST")}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (zipped(**{f"{UWG}_TRAIN.ts": TRAIN}), f"must hold {UWG}_TEST.ts, it has {UWG}_TRAIN.ts"),
        (zipped(**{f"{UWG}_TRAIN.ts": TRAIN, f"{UWG}_TEST.ts": b"y"}), "wrong checksum of .*_TEST"),
        (zipped(**{f"{UWG}_TRAIN.ts": TRAIN, f"{UWG}_TEST.ts": TEST})[:-30], "is damaged"),
        (b"PK but no archive at all", "the archive is damaged"),
        (b"<html>404, with status 200</html>", "must begin with b'PK'"),
    ],
    ids=["a file is missing", "wrong checksum", "truncated", "no zip", "a page"],
)
def test_a_bad_archive_leaves_nothing_behind(uwg, cache, content, reason):
    uwg.content = content
    with pytest.raises(DownloadError, match=reason):
        get(UWG)
    assert list(cache.iterdir()) == []


def test_damage_inside_an_archive_is_noticed(uwg, cache, monkeypatch):
    """Also where no checksum is known: zip has its own."""
    known = CATALOG[UWG]
    files = {split: (File(names[0].name),) for split, names in known.files.items()}
    monkeypatch.setitem(CATALOG, UWG, replace(known, files=files))
    noise = os.urandom(1000)
    content = bytearray(zipped(**{f"{UWG}_TRAIN.ts": noise, f"{UWG}_TEST.ts": TEST}))
    content[500] ^= 1
    uwg.content = bytes(content)
    with pytest.raises(DownloadError, match="the archive is damaged"):
        get(UWG)
    assert list(cache.iterdir()) == []


def test_an_error_says_what_to_do_in_one_line(uwg, cache):
    uwg.statuses = [404]
    with pytest.raises(DownloadError) as caught:
        find("UWG", "train")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{UWG}: the server answered 404")
    for said in (uwg.url, f"{UWG}_TRAIN.ts and {UWG}_TEST.ts", "--data-dir", "EATTN_DATA"):
        assert said in message


def test_where_nothing_comes_nothing_is_left(uwg, cache):
    uwg.statuses = [404]
    with pytest.raises(DownloadError):
        get(UWG)
    assert list(cache.iterdir()) == []


def test_an_archive_that_broke_off_is_resumed_by_the_next_call(uwg, cache):
    uwg.cuts = [100, 10, 10]
    with pytest.raises(
        DownloadError, match=r"broke off after 120 of .* the same command continues"
    ):
        get(UWG)
    get(UWG)
    assert uwg.starts() == [None, 100, 110, 120]
    assert (cache / UWG / f"{UWG}_TEST.ts").read_bytes() == TEST


CHILD = """
import sys
from dataclasses import replace
from pathlib import Path
from eattn.data import CATALOG, download, get
from eattn.data.catalog import File
download.PAUSE = 0
name, url, folder, train, test = sys.argv[1:]
files = {"train": (File(f"{name}_TRAIN.ts", train),), "test": (File(f"{name}_TEST.ts", test),)}
CATALOG[name] = replace(CATALOG[name], url=url, files=files)
print("ready", flush=True)
for path in get(name, folder=folder):
    print(path.read_bytes().decode())
"""


def child(uwg, folder: Path) -> subprocess.Popen[str]:
    sums = [hashlib.sha256(content).hexdigest() for content in (TRAIN, TEST)]
    command = [sys.executable, "-c", CHILD, UWG, uwg.url + ".zip", str(folder), *sums]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_do_not_disturb_each_other(uwg, tmp_path):
    """The second waits while the first is in the middle of it, and then finds it done."""
    uwg.cuts, uwg.stall = [50], threading.Event()
    with child(uwg, tmp_path) as first, child(uwg, tmp_path) as second:
        uwg.at_cut.wait()
        for process in (first, second):
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        uwg.stall.set()
        outputs = [process.communicate()[0] for process in (first, second)]
    assert outputs == [f"{TRAIN.decode()}\n{TEST.decode()}\n"] * 2
    assert uwg.starts() == [None, 50]
    assert {path.name for path in (tmp_path / UWG).iterdir()} == {
        f"{UWG}_TRAIN.ts",
        f"{UWG}_TEST.ts",
    }


def test_a_killed_process_does_not_hold_up_the_next(uwg, tmp_path):
    uwg.cuts, uwg.stall = [50], threading.Event()
    with child(uwg, tmp_path) as process:
        uwg.at_cut.wait()
        process.kill()
    assert get(UWG, folder=tmp_path)[1].read_bytes() == TEST


@pytest.mark.parametrize(
    ("system", "variable", "place"),
    [
        ("linux", "XDG_CACHE_HOME", ""),
        ("win32", "LOCALAPPDATA", ""),
        ("linux", None, ".cache"),
        ("darwin", None, "Library/Caches"),
        ("win32", None, "AppData/Local"),
    ],
)
def test_the_cache_is_where_the_system_has_it(monkeypatch, tmp_path, system, variable, place):
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, str(tmp_path))
    assert cache_dir() == tmp_path / place / "eattn" / "data"


needs_data = pytest.mark.skipif("EATTN_DATA" not in os.environ, reason="EATTN_DATA is not set")


@needs_data
@pytest.mark.parametrize("name", CATALOG)
def test_the_files_in_the_data_folder_are_those_published(name):
    known = CATALOG[name]
    for split, names in known.files.items():
        found = locate(name, split)
        if found is None or found.where != "data folder":
            pytest.skip(f"{name} is not in the data folder")
        opened = gzip.open if found.path.suffix == ".gz" else open
        with opened(found.path, "rb") as file:
            got = hashlib.sha256(file.read()).hexdigest()
        sums = {file.name: file.sha256 for file in names}
        assert sums[found.path.name.removesuffix(".gz")] in (got, None)
