"""The page "In the browser", in headless Chromium: its forecasts and scores equal Python's."""

import functools
import http.server
import json
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import browser_helpers as browser
import numpy as np
import pandas as pd
import pytest

pytest.importorskip("onnx", reason='needs pip install "eattn[export]"')
import browser_models
import packages

from eattn.timeseries import EAForecaster
from eattn.timeseries.calendar import usual_seasons

ROOT = Path(__file__).parents[1]
CHROMIUM = browser.find()
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
    pytest.mark.skipif(not packages.are_fetched(), reason="needs onnxruntime-web: make docs"),
]
CLOSE = dict(rtol=1e-4, atol=1e-4)
LEVELS = tuple(i / 10 for i in range(1, 10))
MODULE = "(await import('/javascripts/stream/csv.js'))"
HEADER = "time,load\n"
READY = "document.getElementById('stream').dataset.ready !== undefined"
PROBLEM = "document.querySelector('[data-part=problem]')"
STREAM = "document.getElementById('stream').stream"


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder and remembers the requested paths."""

    def __init__(self, folder: Path) -> None:
        self.paths: list[str] = []
        server = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                server.paths.append(self.path)

        super().__init__(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


@pytest.fixture(scope="module")
def model() -> EAForecaster:
    """Return a pretrained forecaster for one season."""
    rng, t = np.random.default_rng(0), np.arange(300)
    options = dict(quantiles=LEVELS, season_length=24, fallback=False)
    y = np.sin(t * np.pi / 12) + 0.3 * rng.normal(size=300)
    return EAForecaster(browser_models.HORIZON, **options).fit(y)


@pytest.fixture(scope="module")
def server(model, tmp_path_factory) -> Iterator[Server]:
    """Serve the page without the rest of the site."""
    folder = tmp_path_factory.mktemp("page")
    shutil.copytree(ROOT / "docs/site/theme", folder, dirs_exist_ok=True)
    for name, path in packages.files():
        if "onnxruntime" in name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(path)
    browser_models.write(folder / "models", [model])
    assert (folder / "models" / browser_models.WEIGHTS).stat().st_size  # some tensors are shared
    browser_models.write_examples(folder / "models")
    text = (ROOT / "docs/browser.md").read_text(encoding="utf-8")
    found = re.search(r"<link.*</script>", text, re.DOTALL)
    assert found is not None
    (folder / "browser").mkdir()
    style = '<link rel="stylesheet" href="../stylesheets/site.css"><link rel="icon" href="data:,">'
    (folder / "browser/index.html").write_text(
        f'<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'{style}<body class="md-typeset" data-md-color-scheme="default">{found[0]}'
    )
    with Server(folder) as started:
        threading.Thread(target=started.serve_forever, daemon=True).start()
        yield started
        started.shutdown()


@pytest.fixture(scope="module")
def window(server) -> Iterator[browser.Page]:
    """Open the page once, and pause the example that it starts with."""
    assert CHROMIUM is not None
    with browser.page(CHROMIUM) as tab:
        tab.open(f"{server.address}browser/")
        wait(tab, f"{READY} && {STREAM}.rows?.read > 20")
        tab.run(f"{STREAM}.pause()")
        yield tab


@pytest.fixture(autouse=True)
def no_errors(window) -> Iterator[None]:
    window.errors.clear()
    yield
    assert window.errors == []


def wait(window: browser.Page, condition: str) -> None:
    """Wait until a condition holds; raise if the page shows a problem instead."""
    stop = f"if (!{PROBLEM}.hidden) throw new Error({PROBLEM}.innerText);"
    frame = "await new Promise(requestAnimationFrame);"
    window.run(f"(async () => {{ while (!({condition})) {{ {stop} {frame} }} }})()")


def awkward(length: int) -> np.ndarray:
    """Return a season with noise, missing values, outliers and a new level."""
    rng, t = np.random.default_rng(1), np.arange(length)
    y = 3 * np.sin(t * np.pi / 12) + 0.5 * rng.normal(size=length) + 0.001 * t
    y[length // 2 :] += 8
    y[[40, 41, 42, length // 3]] = np.nan
    y[[150, length // 4]] = 1e6, 30.0
    return y


def as_csv(y: np.ndarray) -> str:
    """Return hourly rows, without those that are missing."""
    times = pd.date_range("2026-01-01", periods=len(y), freq="h").strftime("%Y-%m-%d %H:%M")
    rows = [
        f"{time},{value!r}" for time, value in zip(times, y.tolist(), strict=True) if value == value
    ]
    return "\n".join(["time,load", *rows])


def start(window: browser.Page, text: str) -> None:
    window.run(f"{STREAM}.start({json.dumps(text)})")


def fan(window: browser.Page) -> np.ndarray:
    return np.array(window.run(f"[...{STREAM}.rows.fan]")).reshape(-1, len(LEVELS))


def assert_equal_to_python(window, model, y, cutoffs):
    """Stream values in the page and in Python, and compare forecasts and scores."""
    start(window, as_csv(y))
    python, read, sizes = model.with_history(y[:1]), 1, set()
    scores = [0.0]
    for cutoff in cutoffs:
        if cutoff > read:
            scores += python.update(y[read:cutoff], return_scores=True)["score"].tolist()
        window.run(f"{STREAM}.advance({cutoff} - {STREAM}.rows.read)")
        read = cutoff
        expected = python.predict().filter(like="-q").to_numpy()
        np.testing.assert_allclose(fan(window), expected, **CLOSE, err_msg=f"after {cutoff} rows")
        sizes.add(window.run(f"{STREAM}.rows.bytes"))
    found = window.run(f"[...{STREAM}.rows.scores]")
    np.testing.assert_allclose(found[:read], scores, **CLOSE)
    assert max(scores) == 1.0
    assert len(sizes) == 1  # the state does not grow


def test_forecasts_and_scores_of_a_stream_equal_python(window, model):
    cutoffs = [1, 2, 3, 11, 30, 43, 151, 152, 500, 1001, 1500, 2000]
    assert_equal_to_python(window, model, awkward(2000), cutoffs)


def test_forecasts_of_counts_equal_python_and_are_not_negative(window, model):
    rng = np.random.default_rng(2)
    y = rng.poisson(2 + 2 * np.sin(np.arange(300) * np.pi / 12)).astype(float)
    y[200] = 90
    assert_equal_to_python(window, model, y, [1, 100, 201, 300])
    assert fan(window).min() >= 0
    assert window.run(f"{STREAM}.rows.series.lower") == 0


def test_visitor_reads_pasted_csv_without_network(window, server):
    server.paths.clear()
    box = "document.querySelector('[data-part=text]')"
    window.run("document.querySelector('[data-part=speed]').value = '0'")
    window.run(f"{box}.value = {json.dumps(as_csv(awkward(400)))}")
    window.run("document.querySelector('[data-part=read]').click()")
    wait(window, f"{STREAM}.rows?.read === 400 && !{STREAM}.playing")
    text = window.run("document.getElementById('stream').innerText")
    assert "400 of 400" in text
    assert "one row per hour, seasons of 24 rows" in text
    assert window.run("document.querySelectorAll('[data-part=anomalies] li').length") >= 2
    for name in ("visits", "requests"):
        window.run(f"document.querySelector('[data-example={name}]').click()")
        wait(window, f"{STREAM}.rows?.series.name === '{name}' && {STREAM}.rows.read > 100")
        window.run(f"{STREAM}.pause()")
    assert server.paths == []


def test_series_can_be_replaced_while_another_is_read(window):
    text = json.dumps(as_csv(awkward(200)))
    script = f"document.querySelector('[data-part=text]').value = {text};"
    for example in ("heat", "visits", "heat"):
        script += f"document.querySelector('[data-example={example}]').click();"
        script += "await new Promise(done => setTimeout(done, 40));"
    script += "document.querySelector('[data-part=read]').click();"
    window.run(f"(async () => {{ {script} }})()")
    wait(window, f"{STREAM}.rows?.series.name === 'load' && {STREAM}.done && !{STREAM}.playing")
    assert window.run(f"{STREAM}.rows.read") == 200


BROKEN = {  # CSV below the header time,load
    "2026-01-01,1\n2026-01-02,2\n2026-01-03,1O": '4: "1O" in the column load is not a number.',
    "2026-01-01,1\n2026-01-02": "3: found 1 cell, but the header has 2.",
    "2026-01-01,1\n2026-02-30,2": '3: "2026-02-30" is not a time such as 2024-01-31',
    "2026-01-01,1\n\n2026-01-01,2": "4: the time 2026-01-01 occurs twice, first in line 2;",
    '2026-01-01,1\n"2026-01-02,2': "3: a quotation mark is not closed.",
    "01/02/2026,1\n02/02/2026,2": '2: "01/02/2026" may have the day or the month first;',
    "2026-01-01,1\n2026-01-02,2\n2036-01-01,2": "4: 2036-01-01 is 3,651 steps of 1 day after 2026",
    "2026-01-01,a\n2026-01-02,b": '2: no column has numbers; found "2026-01-01", "a".',
    "2026-01-01,1\n2026-01-02,1e30": "3: 1e30 is too large; the limit is 1e15.",
}


@pytest.mark.parametrize("text", BROKEN, ids=list(BROKEN.values()))
def test_broken_csv_gets_a_message_with_its_line(window, text):
    window.run(f"document.querySelector('[data-part=text]').value = {json.dumps(HEADER + text)}")
    window.run("document.querySelector('[data-part=read]').click()")
    wait(window, f"!{PROBLEM}.hidden")
    message = window.run(f"{PROBLEM}.innerText")
    assert message.startswith(f"This CSV cannot be read. Line {BROKEN[text]}"), message


def read(window: browser.Page, text: str) -> dict:
    fields = "seasons: s.seasons, values: [...s.values], next: s.label(s.values.length)"
    series = f"{MODULE}.readSeries({json.dumps(text)})"
    return window.run(f"(async () => {{ const s = {series}; return {{ {fields} }} }})()")


@pytest.mark.parametrize(
    "freq", ["h", "30min", "15min", "7min", "s", "2h", "D", "2D", "B", "W-WED", "MS", "ME", "QS"]
)
def test_season_lengths_follow_the_times_as_in_python(window, freq):
    times = pd.date_range("2024-01-31 00:00", periods=400, freq=freq)
    found = read(window, pd.DataFrame({"ds": times, "y": 1.5}).to_csv(index=False))
    assert found["seasons"] == [m for m in usual_seasons(freq) if 2 * m <= 400]
    assert found["next"] == str(times[-1] + times.freq)[: len(found["next"])]
    assert len(found["values"]) == 400


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("Zeit;Wert\n01.02.2026;1,5\n03.02.2026;2\n02.02.2026;NaN\n", [1.5, None, 2]),
        ("\ufefftime,a,y\r\n2026-01-01T00:00Z,1,2\r\n2026-01-01T02:00+01:00,1,3\r\n", [2, 3]),
        ("1\n2\n\n4\n", [1, 2, 4]),
        ("year,n\n2001,7\n2004,9\n2002,8\n", [7, 8, None, 9]),
        ('month,"a ""b"""\n2026-01,1\n2026-03,\n2026-04,3\n', [1, None, None, 3]),
        ("date\tx\n1/30/2026\t1\n1/31/2026\t2\n", [1, 2]),
    ],
)
def test_csv_formats(window, text, values):
    assert read(window, text)["values"] == values


def renderer_memory(window: browser.Page) -> int:
    """Return the memory of the process of the page in bytes."""
    session, window.session = window.session, None
    found = window.send("SystemInfo.getProcessInfo")["processInfo"]
    window.session = session
    sizes = []
    for process in found:
        if process["type"] == "renderer":
            sizes.append(int(Path(f"/proc/{process['id']}/statm").read_text().split()[1]) * 4096)
    return max(sizes)


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_memory_does_not_grow_over_100_000_rows(window):
    start(window, as_csv(awkward(100_000)))
    sizes = []
    for _ in range(100):
        window.run(f"{STREAM}.advance(1000)")
        sizes.append(renderer_memory(window))
    assert window.run(f"{STREAM}.done")
    early, late = np.median(sizes[20:40]), np.median(sizes[-20:])
    assert late - early < 0.05 * early, (early, late)
