"""One file over HTTP: resumed where it broke off, checked, and put in place whole or not at all."""

import contextlib
import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

Report = Callable[[int, int | None], None]  # bytes so far, and of how many when that is known

CHUNK = 1 << 16  # bytes; small enough that a bar moves on a slow line
PAUSE = 1.0  # seconds before another attempt
PASSING = {408, 429, 500, 502, 503, 504}  # answers that another attempt may change
AGENT = "Mozilla/5.0 (compatible; eattn)"  # some servers turn Python's own name away


class DownloadError(OSError):
    """What was asked for did not come; the message is one line and says why."""


class Broken(DownloadError):
    """It broke off or the server was busy: another attempt may do."""


class Partial:
    """What has come of a file so far: `NAME.part`, and `NAME.part.json`, which says of what.

    It is continued only while the server still has the file it began with.
    """

    def __init__(self, to: Path) -> None:
        self.path = to.with_name(f"{to.name}.part")
        self.note = to.with_name(f"{to.name}.part.json")

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def origin(self) -> dict[str, Any]:
        """url, validator and total of the file that this is part of, as far as they are known."""
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(self.note.read_text(encoding="utf-8"))
            if isinstance(known, dict):
                return known
        return {}

    def begin(self, **origin: Any) -> None:
        """Start anew. The note comes first: no byte is ever there without it."""
        self.discard()
        self.note.write_text(json.dumps(origin), encoding="utf-8")

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)


def fetch(
    url: str,
    to: Path,
    *,
    sha256: str | None = None,
    begins: bytes = b"",
    report: Report | None = None,
    timeout: float = 30.0,
    attempts: int = 3,
) -> None:
    """Download `url` to the file `to`, which is there only when all of it came and is right.

    Right means of this `sha256`, and that it `begins` so: a page that asks for a password is no
    data. `timeout` is in seconds without a byte. Only one process may do this for one `to`.
    """
    partial = Partial(to)
    for attempt in range(1, attempts + 1):
        last = attempt == attempts
        try:
            resumed = _transfer(url, partial, report or (lambda done, total: None), timeout)
        except Broken as error:
            if last:
                kept = "; what came is kept, the same command continues" if partial.size() else ""
                raise Broken(f"{error}{kept}") from error
            time.sleep(PAUSE)
            continue
        wrong = _wrong(partial.path, sha256, begins)
        if wrong is None:
            os.replace(partial.path, to)
            partial.discard()
            return
        partial.discard()
        if last or not resumed:  # else the pieces may be of two files: worth another attempt
            raise DownloadError(f"{wrong}; what came is removed")


def digest(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _transfer(url: str, partial: Partial, report: Report, timeout: float) -> bool:
    """Bring the file to its full size; True when some of it was there before."""
    known, start, headers = partial.origin(), partial.size(), {"User-Agent": AGENT}
    if start and known.get("url") == url:
        if start == known.get("total"):  # killed just before it was put in place
            return True
        if known.get("validator"):
            headers |= {"Range": f"bytes={start}-", "If-Range": known["validator"]}
    with _open(url, headers, timeout, partial) as answer:
        if answer.status == 206:
            total = known.get("total", 0)
            if answer.headers.get("Content-Range") != f"bytes {start}-{total - 1}/{total}":
                partial.discard()
                raise Broken("the server sent another part of the file than it was asked for")
        else:  # the server knows no ranges, or the file has changed
            start, total = 0, _length(answer)
            partial.begin(url=url, validator=_validator(answer) if total else None, total=total)
        _receive(answer, partial.path, start, total, report)
    return start > 0


def _open(url: str, headers: dict[str, str], timeout: float, partial: Partial) -> Any:
    request = urllib.request.Request(url, headers=headers)
    try:
        return urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # what is here cannot be continued
            partial.discard()
        passing = error.code == 416 or error.code in PASSING
        reason = f"the server answered {error.code} {error.reason}"
        raise (Broken if passing else DownloadError)(reason) from error
    except urllib.error.URLError as error:
        raise DownloadError(f"no connection ({error.reason})") from error
    except (OSError, http.client.HTTPException) as error:
        raise Broken(f"the server did not answer ({_words(error)})") from error


def _receive(answer: Any, path: Path, start: int, total: int | None, report: Report) -> None:
    done = start
    report(done, total)
    with path.open("ab") as file:
        while chunk := _read(answer, done):
            file.write(chunk)
            done += len(chunk)
            report(done, total)
        file.flush()
        os.fsync(file.fileno())
    if total is not None and done != total:
        raise Broken(f"the transfer broke off after {done:,} of {total:,} bytes")


def _read(answer: Any, done: int) -> bytes:
    """Its own function, so that a full disk is not taken for a broken line."""
    try:
        return answer.read1(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise Broken(f"the transfer broke off after {done:,} bytes ({_words(error)})") from error


def _wrong(path: Path, sha256: str | None, begins: bytes) -> str | None:
    """Why the file is not the one wanted, or None."""
    with path.open("rb") as file:
        head = file.read(max(len(begins), 40))
    if not head.startswith(begins):
        return f"this is not the file: it must begin with {begins!r}, got {head!r}"
    if sha256 is not None and (got := digest(path)) != sha256:
        return f"wrong checksum: sha256 must be {sha256}, got {got}"
    return None


def _validator(answer: Any) -> str | None:
    """What If-Range accepts: a strong ETag, or the date of the last change."""
    etag = answer.headers.get("ETag")
    if etag and not etag.startswith("W/"):
        return etag
    return answer.headers.get("Last-Modified")


def _length(answer: Any) -> int | None:
    length = answer.headers.get("Content-Length")
    return int(length) if length and length.isdigit() else None


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
