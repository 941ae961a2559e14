"""Downloads from a server that truncates, fails or sends the wrong file."""

import gzip
import hashlib
import io
import os
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from eattn.data import CATALOG, find, get
from eattn.data.catalog import SHA256
from eattn.data.download import DownloadError

TRAIN, TEST, TABLE = b"samples to train on", b"samples to test on", b"date,OT\n2020-01-01,1\n"
UWG = "UWaveGestureLibrary"
FILES = {f"{UWG}_TRAIN.ts": TRAIN, f"{UWG}_TEST.ts": TEST}


def zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def publish(monkeypatch, name: str, url: str, files: dict[str, bytes]) -> None:
    """Register these files of a dataset at `url` in the catalog."""
    monkeypatch.setitem(CATALOG, name, replace(CATALOG[name], url=url))
    for file, content in files.items():
        monkeypatch.setitem(SHA256, file, hashlib.sha256(content).hexdigest())


@pytest.fixture
def uwg(site, monkeypatch, cache):
    """Serve UWaveGestureLibrary as a small zip archive."""
    publish(monkeypatch, UWG, site.url + ".zip", FILES)
    site.content = zipped(FILES | {"other.txt": b""})
    return site


@pytest.fixture
def etth2(site, monkeypatch, cache):
    """Serve ETTh2 as a small CSV file."""
    publish(monkeypatch, "ETTh2", site.url, {"ETTh2.csv": TABLE})
    site.content = TABLE
    return site


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_one_download_fetches_both_splits(uwg, cache):
    assert find("UWG", "train").read_bytes() == TRAIN
    assert find("UWG", "TEST").read_bytes() == TEST
    assert uwg.requests == 1
    assert names(cache) == {UWG}
    assert names(cache / UWG) == set(FILES)


def test_get_downloads_into_a_folder(uwg, cache, tmp_path):
    folder = tmp_path / "mine" / UWG
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    assert get(UWG, folder=tmp_path / "mine") == [folder / name for name in FILES]
    assert names(folder) == {*FILES, "notes.txt"}
    assert not cache.exists()


def test_gzipped_copies_are_not_downloaded_again(uwg, cache):
    cache.mkdir()
    for name, content in FILES.items():
        (cache / f"{name}.gz").write_bytes(gzip.compress(content))
    assert [path.suffix for path in get(UWG)] == [".gz", ".gz"]
    assert uwg.requests == 0


def test_paths_inside_an_archive_are_ignored(uwg, cache, tmp_path):
    train, test = FILES
    uwg.content = zipped({f"../../{train}": TRAIN, f"/tmp/deep/{test}": TEST, "../evil": b"x"})
    get(UWG)
    files = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {Path("cache", UWG, name) for name in FILES}


@pytest.mark.parametrize("failure", [{"statuses": [503, 500]}, {"truncate": [5, 9]}], ids=str)
def test_temporary_failures_are_retried(etth2, cache, failure):
    for name, value in failure.items():
        setattr(etth2, name, value)
    assert find("ETTh2") == cache / "ETTh2" / "ETTh2.csv"
    assert find("ETTh2").read_bytes() == TABLE
    assert etth2.requests == 3


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        ({"statuses": [404] * 3}, "404 .*Not Found"),
        ({"truncate": [5] * 3}, "(IncompleteRead|Connection)"),
        ({"content": b"<html>Please sign in</html>"}, "must begin with b'date,', got b'<html>"),
        ({"content": TABLE + b"more"}, "the sha256 of ETTh2.csv must be [0-9a-f]{64}, got"),
    ],
    ids=["missing", "truncated", "page", "checksum"],
)
def test_failed_download_leaves_no_files(etth2, cache, failure, reason):
    for name, value in failure.items():
        setattr(etth2, name, value)
    with pytest.raises(DownloadError, match=rf"^cannot download ETTh2: .*{reason}") as caught:
        get("ETTh2")
    assert "\n" not in str(caught.value)
    for part in (etth2.url, "ETTh2.csv into a folder", "--data-dir", "EATTN_DATA"):
        assert part in str(caught.value)
    assert names(cache) == set()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (zipped({f"{UWG}_TRAIN.ts": TRAIN}), f"must contain {UWG}_TEST.ts, got {UWG}_TRAIN.ts"),
        (zipped(FILES | {f"{UWG}_TEST.ts": b"y"}), f"the sha256 of {UWG}_TEST.ts must be"),
        (zipped(FILES)[:-30], "not a zip file"),
        (b"<html>Please sign in</html>", "not a zip file"),
    ],
    ids=["missing file", "checksum", "truncated", "page"],
)
def test_invalid_archive_leaves_no_files(uwg, cache, content, reason):
    uwg.content = content
    with pytest.raises(DownloadError, match=reason):
        get(UWG)
    assert names(cache) == set()


def test_corrupt_archive_member_raises(uwg, cache, monkeypatch):
    for name in FILES:
        monkeypatch.delitem(SHA256, name)
    content = bytearray(zipped(FILES | {f"{UWG}_TRAIN.ts": os.urandom(1000)}))
    content[500] ^= 1
    uwg.content = bytes(content)
    with pytest.raises(DownloadError, match=r"CRC|invalid"):
        get(UWG)
    assert names(cache) == set()


def test_full_disk_is_not_a_download_error(etth2, cache, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("eattn.data.download.os.replace", full)
    with pytest.raises(OSError, match="No space left") as caught:
        get("ETTh2")
    assert not isinstance(caught.value, DownloadError)
    assert not (cache / "ETTh2" / "ETTh2.csv").exists()


def test_progress_is_shown_only_on_terminals(etth2, capsys, monkeypatch, tmp_path):
    get("ETTh2", folder=tmp_path / "a", progress=True)
    assert "B/s" not in capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    get("ETTh2", folder=tmp_path / "b", progress=True)
    assert "B/s" in capsys.readouterr().err


def test_error_for_missing_pooch_names_the_extra(etth2, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ModuleNotFoundError, match=r"pooch is not installed.*eattn\[timeseries\]"):
        get("ETTh2")
