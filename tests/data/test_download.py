"""One file from a server that cuts off, lies, stalls or refuses."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from eattn.data.download import Broken, DownloadError, Partial, fetch

CONTENT = bytes(range(256)) * 4099  # about a megabyte, longer than any buffer
SUM = hashlib.sha256(CONTENT).hexdigest()
PASSING = "what came is kept, the same command continues"


@pytest.fixture
def to(tmp_path):
    return tmp_path / "file.bin"


@pytest.fixture
def site(site):
    site.content = CONTENT
    return site


def left(to: Path) -> set[str]:
    return {path.name for path in to.parent.iterdir()}


def test_a_file_comes_whole_and_leaves_nothing_else(site, to):
    seen = []
    fetch(site.url, to, sha256=SUM, report=lambda done, total: seen.append((done, total)))
    assert to.read_bytes() == CONTENT
    assert left(to) == {"file.bin"}
    assert seen[0] == (0, len(CONTENT))
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert seen == sorted(seen)


@pytest.mark.parametrize("how", ["chunked", "without a length", "moved"])
def test_it_comes_in_other_ways_too(site, to, how):
    site.chunked, site.length = how == "chunked", how != "without a length"
    url = site.url.replace("/file", "/moved") if how == "moved" else site.url
    fetch(url, to, sha256=SUM)
    assert to.read_bytes() == CONTENT


@pytest.mark.parametrize("validator", ["etag", "date"])
def test_a_transfer_that_broke_off_is_resumed_at_once(site, to, validator):
    if validator == "date":
        site.etag, site.date = 'W/"weak"', "Wed, 21 Oct 2015 07:28:00 GMT"
    site.cuts = [1000, 70000]
    fetch(site.url, to, sha256=SUM)
    assert to.read_bytes() == CONTENT
    assert site.starts() == [None, 1000, 71000]
    assert [seen.get("If-Range") for seen in site.seen[1:]] == [getattr(site, validator)] * 2
    assert left(to) == {"file.bin"}


def test_what_came_is_kept_for_the_next_call(site, to):
    site.cuts = [1000]
    with pytest.raises(Broken, match=f"after 1,000 of 1,049,344 bytes; {PASSING}"):
        fetch(site.url, to, attempts=1)
    assert not to.exists()
    fetch(site.url, to, sha256=SUM)
    assert to.read_bytes() == CONTENT
    assert site.starts() == [None, 1000]


def test_a_server_without_ranges_starts_anew(site, to):
    site.ranges, site.cuts = False, [1000]
    fetch(site.url, to, sha256=SUM)
    assert to.read_bytes() == CONTENT
    assert site.starts() == [None, 1000]


def test_without_anything_to_tell_versions_apart_it_starts_anew(site, to):
    site.etag, site.cuts = None, [1000]
    fetch(site.url, to, sha256=SUM)
    assert to.read_bytes() == CONTENT
    assert site.starts() == [None, None]


def test_a_part_of_another_address_is_not_continued(site, to):
    site.cuts = [1000]
    with pytest.raises(Broken):
        fetch(site.url + "?old", to, attempts=1)
    fetch(site.url, to, sha256=SUM)
    assert to.read_bytes() == CONTENT
    assert site.starts() == [None, None]


def test_a_file_that_changed_between_attempts_starts_anew(site, to):
    site.cuts = [1000]
    with pytest.raises(Broken):
        fetch(site.url, to, attempts=1)
    site.content, site.etag = CONTENT[::-1], '"two"'
    fetch(site.url, to)
    assert to.read_bytes() == CONTENT[::-1]


def test_a_file_that_changed_in_secret_is_found_by_its_sum_and_starts_anew(site, to):
    site.content, site.cuts = CONTENT[::-1], [1000]
    with pytest.raises(Broken):
        fetch(site.url, to, attempts=1)
    site.content = CONTENT
    fetch(site.url, to, sha256=SUM)
    assert to.read_bytes() == CONTENT
    assert site.starts() == [None, 1000, None]


@pytest.mark.parametrize("size", [900, 2_000_000])
def test_a_file_that_became_shorter_or_longer_in_secret_starts_anew(site, to, size):
    site.cuts = [1000]
    with pytest.raises(Broken):
        fetch(site.url, to, attempts=1)
    site.content = bytes(size)
    fetch(site.url, to)
    assert to.read_bytes() == bytes(size)


def test_a_server_that_sends_another_part_than_asked_is_not_believed(site, to):
    site.cuts, site.skip = [1000], [24]
    fetch(site.url, to)
    assert to.read_bytes() == CONTENT
    assert site.starts() == [None, 1000, None]


def test_a_part_that_is_all_there_is_put_in_place_without_a_request(site, to):
    """As when the process was killed between the last byte and the renaming."""
    partial = Partial(to)
    partial.begin(url=site.url, validator='"one"', total=len(CONTENT))
    partial.path.write_bytes(CONTENT)
    fetch(site.url, to, sha256=SUM)
    assert to.read_bytes() == CONTENT
    assert site.seen == []


def test_a_damaged_note_starts_anew(site, to):
    site.cuts = [1000]
    with pytest.raises(Broken):
        fetch(site.url, to, attempts=1)
    Partial(to).note.write_text("{")
    fetch(site.url, to, sha256=SUM)
    assert site.starts() == [None, None]


def test_a_wrong_checksum_removes_what_came_and_names_both(site, to):
    site.content = b"other"
    with pytest.raises(DownloadError, match=f"sha256 must be {SUM}, got d9298a10.*is removed"):
        fetch(site.url, to, sha256=SUM)
    assert left(to) == set()
    assert len(site.seen) == 1


def test_a_page_in_the_place_of_data_is_refused(site, to):
    site.content = b"<html>Please sign in</html>"
    with pytest.raises(DownloadError, match=r"must begin with b'date,', got b'<html>Please"):
        fetch(site.url, to, begins=b"date,")
    assert left(to) == set()


def test_a_file_that_was_there_stays_when_the_new_one_is_wrong(site, to):
    to.write_bytes(b"before")
    with pytest.raises(DownloadError):
        fetch(site.url, to, sha256="0" * 64)
    assert to.read_bytes() == b"before"


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (403, 1), (500, 3), (503, 3)])
def test_an_error_of_the_server_is_named_and_tried_again_if_it_may_pass(site, to, status, requests):
    site.statuses = [status] * 3
    with pytest.raises(DownloadError, match=f"the server answered {status} ") as caught:
        fetch(site.url, to)
    assert "kept" not in str(caught.value)
    assert len(site.seen) == requests
    assert left(to) == set()


def test_a_server_that_was_busy_for_a_moment_does(site, to):
    site.statuses = [503, 429]
    fetch(site.url, to, sha256=SUM)
    assert to.read_bytes() == CONTENT


def test_a_chunked_transfer_that_broke_off_is_noticed(site, to):
    site.chunked, site.cuts = True, [1000]
    fetch(site.url, to, sha256=SUM)
    assert to.read_bytes() == CONTENT


def test_a_refused_connection_is_one_line(to):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(DownloadError, match=r"no connection \(.*\)$"):
            fetch(f"http://127.0.0.1:{taken.getsockname()[1]}/file", to)
    assert left(to) == set()


def test_a_server_that_hangs_up_without_a_word_is_one_line(to):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            for _ in range(3):
                server.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(Broken, match="the server did not answer"):
            fetch(f"http://127.0.0.1:{server.getsockname()[1]}/file", to)
        thread.join()


def test_a_server_that_stops_sending_is_given_up_and_resumed(site, to):
    site.cuts, site.stall = [1000], threading.Event()
    with pytest.raises(Broken, match=f"broke off after 1,000 bytes.*{PASSING}"):
        fetch(site.url, to, timeout=0.1, attempts=1)
    fetch(site.url, to, sha256=SUM)
    assert to.read_bytes() == CONTENT
    assert site.starts() == [None, 1000]


def test_a_full_disk_is_not_taken_for_a_broken_line(site, to, monkeypatch):
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        fetch(site.url, to)
    assert not isinstance(caught.value, DownloadError)
    assert not to.exists()


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX")
def test_a_download_that_was_killed_is_resumed(site, to):
    site.cuts, site.stall = [100_000], threading.Event()
    code = (
        "import sys, pathlib; from eattn.data.download import fetch; "
        "fetch(sys.argv[1], pathlib.Path(sys.argv[2]), "
        "report=lambda done, total: print(done, flush=True))"
    )
    command = [sys.executable, "-c", code, site.url, str(to)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 100_000:
                break
        process.send_signal(signal.SIGKILL)
    assert not to.exists()
    fetch(site.url, to, sha256=SUM)
    assert to.read_bytes() == CONTENT
    [_, start] = site.starts()
    assert start is not None  # what was in the process's buffer is lost, the rest is not
    assert 0 < start <= 100_000
    assert left(to) == {"file.bin"}
