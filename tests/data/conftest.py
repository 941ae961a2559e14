"""Fixtures: a local web server that fails on request, and an empty cache."""

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module

import pytest


@dataclass
class Site:
    """File of the server and its answers; each request consumes one item of the lists."""

    url: str
    content: bytes = b""
    statuses: list[int] = field(default_factory=list)  # error statuses to return
    truncate: list[int] = field(default_factory=list)  # close the connection after this many bytes
    requests: int = 0


class Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site = self.site
        site.requests += 1
        status = site.statuses.pop(0) if site.statuses else 200
        content = site.content if status == 200 else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: site.truncate.pop(0) if site.truncate else None])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def site(monkeypatch):
    """Serve a file at `site.url`; pooch does not wait between attempts."""
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Handler.site = Site(f"http://127.0.0.1:{server.server_port}/file")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield Handler.site
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Use an empty cache, no data folder and no packages that ship datasets."""
    locate = import_module("eattn.data.locate")  # the attribute eattn.data.locate is the function
    monkeypatch.setattr(locate, "cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setattr(locate, "_shipped", lambda package: [])
    monkeypatch.delenv("EATTN_DATA", raising=False)
    return tmp_path / "cache"
