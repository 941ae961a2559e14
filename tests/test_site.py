"""The documentation site: built without warnings, complete, and without requests to other hosts."""

import functools
import http.server
import importlib
import os
import re
import shutil
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import browser_helpers as browser
import pytest

ROOT = Path(__file__).parents[1]
CHROMIUM = browser.find()
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(find_spec("mkdocs") is None, reason='needs pip install "eattn[docs]"'),
    pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm, which fetches KaTeX"),
]
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
LOADS = {"src", "srcset", "poster", "data"}  # attributes whose addresses a browser loads by itself
MODULES = sorted(re.findall(r"api/(eattn[\w.]*)\.md", (ROOT / "mkdocs.yml").read_text("utf-8")))
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
WAIT = """
(async () => {{
  for (let i = 0; i < 500 && !({condition}); i++) await new Promise(done => setTimeout(done, 20));
}})()
"""


class Document(HTMLParser):
    """Addresses that a page loads or links to, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and (name in LOADS or (tag == "link" and name == "href")):
                self.loads.append(value)
            elif value and tag == "a" and name == "href":
                self.links.append(value)
            elif value and name == "id":
                self.anchors.add(value)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site once for all workers of pytest-xdist."""
    from filelock import FileLock  # torch needs it, too

    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "site"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
            run = subprocess.run(
                [*command, "--site-dir", str(folder)],
                cwd=ROOT,
                env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
                capture_output=True,
                text=True,
            )
            assert run.returncode == 0, run.stderr
            assert "WARNING" not in run.stderr
    return folder


@pytest.fixture(scope="session")
def pages(site) -> dict[Path, Document]:
    return {path: Document(path) for path in sorted(site.rglob("*.html"))}


@pytest.fixture(scope="module")
def address(site) -> Iterator[str]:
    """Serve the site and return its address."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None: ...

    handler = functools.partial(Handler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.fixture(scope="module")
def window() -> Iterator[browser.Page]:
    assert CHROMIUM is not None
    with browser.page(CHROMIUM) as tab:
        yield tab


def wait(window: browser.Page, condition: str) -> None:
    script = WAIT.format(condition=condition)
    answer = window.send("Runtime.evaluate", expression=script, awaitPromise=True)
    assert "exceptionDetails" not in answer, answer
    assert window.run(condition), condition


def test_pages_and_styles_load_nothing_from_other_hosts(site, pages):
    loads = [load for page in pages.values() for load in page.loads]
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        loads += re.findall(r"(?:url\(|@import\s*)[\"']?([^\"')\s]+)", text)
    assert len(loads) > len(pages)
    assert [load for load in loads if re.match(r"(\w+:)?//", load)] == []


def test_every_link_inside_the_site_resolves(site, pages):
    broken = []
    for path, page in pages.items():
        here = f"http://site/{path.relative_to(site).as_posix()}"
        if path.name == "404.html":
            continue  # its links start at the root of the host
        for link in page.links:
            parts = urlsplit(urljoin(here, link))
            target = site / unquote(parts.path).lstrip("/")
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            if parts.netloc == "site" and not (
                target.is_file() and (not anchor or anchor in pages[target].anchors)
            ):
                broken.append((here, link))
    assert broken == []


def test_lists_and_tables_of_documents_are_rendered(pages):
    for path in pages:
        text = re.sub(r"<(pre|script).*?</\1>", "", path.read_text("utf-8"), flags=re.DOTALL)
        assert re.search(r"^\s*(- |\|)|\n\d+\. \w", text, re.MULTILINE) is None, path


@pytest.mark.parametrize("module", MODULES)
def test_api_page_has_every_public_name(module, pages, site):
    page = pages[site / "api" / module / "index.html"]
    found = importlib.import_module(module)
    names = getattr(found, "__all__", ())
    missing = [
        name
        for name in names
        if not isinstance(getattr(found, name), types.ModuleType | str)
        if not any(anchor.endswith(f".{name}") for anchor in page.anchors)
    ]
    assert missing == []


def test_results_page_shows_every_picture(site):
    text = (site / "results" / "index.html").read_text(encoding="utf-8")
    for picture in (ROOT / "paper" / "results").glob("*.svg"):
        for name in (picture.stem, f"{picture.stem}-dark"):
            assert f"pictures/{name}.svg" in text
            assert (site / "pictures" / f"{name}.svg").is_file()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_page_of_a_notebook_shows_every_plot(notebook, pages, site):
    folder = site / "notebooks" / notebook.stem
    shown = [load for load in pages[folder / "index.html"].loads if re.fullmatch(r"\d+\.svg", load)]
    assert len(shown) == len(set(shown)) == notebook.read_text("utf-8").count('"image/svg+xml"') > 0
    assert all((folder / name).is_file() for name in shown)


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(1440, False), (390, True)])
def test_every_page_fits_and_requests_only_the_site(window, address, site, pages, width, dark):
    for path in pages:
        window.errors.clear()
        window.requests.clear()
        name = path.relative_to(site).as_posix()
        window.open(address + name, width=width, dark=dark)
        wait(window, "document.readyState === 'complete'")
        assert window.run("document.documentElement.scrollWidth") <= width, name
        assert window.errors == [], name
        elsewhere = [url for url in window.requests if not url.startswith((address, "data:"))]
        assert elsewhere == [], name


@needs_chromium
def test_mathematics_is_rendered_with_bundled_fonts(window, address):
    window.open(f"{address}how-it-works/")
    wait(window, "document.querySelector('.katex') !== null")
    formulas = window.run("document.querySelectorAll('.arithmatex').length")
    assert window.run("document.querySelectorAll('.arithmatex > .katex, .katex-display').length")
    assert window.run("document.querySelectorAll('.arithmatex:has(.katex)').length") == formulas > 5
    assert window.run("document.querySelectorAll('.katex-error').length") == 0
    wait(window, "document.fonts.status === 'loaded'")
    fonts = "[...document.fonts].filter(f => f.status === 'loaded').map(f => f.family).join()"
    loaded = window.run(fonts)
    assert all(name in loaded for name in ("KaTeX_Main", "Inter Variable", "JetBrains Mono"))


@needs_chromium
def test_search_finds_a_guide(window, address):
    window.requests.clear()
    window.open(f"{address}?q=irregular+sampling")
    wait(window, "document.querySelector('.md-search-result__item a') !== null")
    assert "/forgetting/" in window.run("document.querySelector('.md-search-result__item a').href")
    assert all(url.startswith((address, "data:", "blob:")) for url in window.requests)


@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
def test_report_is_embedded_in_the_color_scheme_of_the_page(window, address, dark):
    window.open(f"{address}report/", dark=dark)
    wait(window, "frames[0].document.querySelector('.figure[data-ready] svg') !== null")
    for document in ("document", "frames[0].document"):
        color = window.run(f"getComputedStyle({document}.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", color)[:3])) < 3 * 128) == dark, (document, color)
