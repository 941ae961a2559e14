"""A web server that misbehaves on request, and a cache that is nobody's."""

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass
class Site:
    """What the server has, and how it answers; lists are used up one item per request."""

    content: bytes = b""
    etag: str | None = '"one"'
    date: str | None = None
    ranges: bool = True
    chunked: bool = False
    length: bool = True
    skip: list[int] = field(default_factory=list)  # answer from so many bytes after the one asked
    statuses: list[int] = field(default_factory=list)  # instead of an answer
    cuts: list[int] = field(default_factory=list)  # hang up after so many bytes
    stall: threading.Event | None = None  # at a cut, wait for this instead of hanging up
    at_cut: threading.Event = field(default_factory=threading.Event)
    seen: list[dict[str, str]] = field(default_factory=list)  # headers of the requests
    url: str = ""

    def starts(self) -> list[int | None]:
        """From which byte on each request asked."""
        return [
            int(headers["Range"].removeprefix("bytes=")[:-1]) if "Range" in headers else None
            for headers in self.seen
        ]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_GET(self) -> None:
        site = self.server.site
        site.seen.append(dict(self.headers))
        self.close_connection = True
        if self.path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", "/file")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif site.statuses and (status := site.statuses.pop(0)) != 200:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self.answer(site)

    def answer(self, site: Site) -> None:
        start = self.start(site)
        if start is not None and start >= len(site.content):
            self.send_error(416)
            return
        self.send_response(200 if start is None else 206)
        if start is not None:
            whole = len(site.content)
            self.send_header("Content-Range", f"bytes {start}-{whole - 1}/{whole}")
        body = site.content[start or 0 :]
        if site.etag:
            self.send_header("ETag", site.etag)
        if site.date:
            self.send_header("Last-Modified", site.date)
        if site.chunked:
            self.send_header("Transfer-Encoding", "chunked")
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        elif site.length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not site.cuts:
            self.wfile.write(body)
            return
        self.wfile.write(body[: site.cuts.pop(0)])
        self.wfile.flush()
        site.at_cut.set()
        if site.stall:
            site.stall.wait()

    def start(self, site: Site) -> int | None:
        asked, condition = self.headers.get("Range"), self.headers.get("If-Range")
        if asked is None or not site.ranges or condition not in (site.etag, site.date):
            return None
        if str(condition).startswith("W/"):  # what is weak cannot be a condition
            return None
        skip = site.skip.pop(0) if site.skip else 0
        return int(asked.removeprefix("bytes=").removesuffix("-")) + skip

    def log_message(self, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    site: Site

    def handle_error(self, *args: object) -> None:
        """A client that went away is what some of the tests are about."""


@pytest.fixture
def site():
    """A server on 127.0.0.1; `site.url` is its file."""
    server = Server(("127.0.0.1", 0), Handler)
    server.site = site = Site(url=f"http://127.0.0.1:{server.server_port}/file")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield site
    if site.stall:
        site.stall.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr("eattn.data.download.PAUSE", 0)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, no data folder, and no packages that ship sets."""
    monkeypatch.setattr("eattn.data.locate.cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setattr("eattn.data.locate._shipped", lambda package: [])
    monkeypatch.delenv("EATTN_DATA", raising=False)
    return tmp_path / "cache"
