"""The report page in Chromium: drawn, interactive, on any screen and in print."""

import json
import re
import shutil
from pathlib import Path

import browser_helpers as browser
import pytest

from paper.harness import experiment, page
from paper.harness.experiment import RESULTS
from paper.harness.runlog import read_rows
from paper.tables import table3

CHROMIUM = browser.find()
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
FIGURE = """document.querySelector('[data-figure="table3"]')"""
BUTTON = f"""{FIGURE}.querySelector('[data-name="ea-6"]')"""
POINTS = f"{FIGURE}.querySelectorAll('.plot path[aria-roledescription=point]').length"
READY = """
(async () => {
  for (const figure of document.querySelectorAll('.figure'))
    while (!figure.dataset.ready) await new Promise(requestAnimationFrame);
  await new Promise((done) => setTimeout(done, 50));
})()
"""
OVERFLOWING = """
[...document.querySelectorAll('body *')]
  .filter(e => !e.closest('.scroll, .skip, #vg-tooltip-element') && !e.closest('svg > *'))
  .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5)
  .map(e => e.outerHTML.slice(0, 80))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    return page.write(RESULTS, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def window():
    assert CHROMIUM is not None
    with browser.page(CHROMIUM) as tab:
        yield tab


def show(window, report, **options) -> None:
    window.open(report, **options)
    answer = window.send("Runtime.evaluate", expression=READY, awaitPromise=True)
    assert "exceptionDetails" not in answer, answer


def section(report: Path, name: str) -> str:
    text = report.read_text(encoding="utf-8")
    return text.partition(f'<section id="{name}"')[2].partition("</section>")[0]


def test_page_holds_every_experiment_and_its_pictures(report):
    for name in experiment.names():
        found = experiment.result(name)
        assert found.module.TITLE in section(report, name)
        if found.chart is not None:
            assert {f"{name}.svg", f"{name}.png"} <= {p.name for p in report.parent.iterdir()}
    assert "paper&#39;s ea-6" in section(report, "table3")


def test_quick_runs_serve_where_there_is_no_full_one(tmp_path):
    shutil.copy(RESULTS / "table3.jsonl", tmp_path / "table3-quick.jsonl")
    made = page.write(tmp_path, tmp_path / "out")
    assert "quick run" in section(made, "table3")
    assert "Targets" not in section(made, "table3")
    assert "python -m paper run op" in section(made, "op")


def test_text_of_rows_is_escaped(tmp_path):
    bad = '<script>alert("x")</script>'
    rows = [row | {"mixer": bad, "hardware": bad} for row in read_rows(RESULTS / "table3.jsonl")]
    (tmp_path / "table3.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = page.write(tmp_path, tmp_path / "out")
    assert bad not in made.read_text(encoding="utf-8")
    assert "&lt;script&gt;" in section(made, "conditions")


def test_a_folder_without_rows_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no rows to report"):
        page.write(tmp_path, tmp_path / "out")


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(375, True), (820, False), (1600, False)])
def test_every_panel_is_drawn_and_fits_the_window(window, report, width, dark):
    window.errors.clear()
    window.requests.clear()
    show(window, report, width=width, dark=dark)
    assert window.errors == []
    drawn = window.run("[...document.querySelectorAll('.plot svg')].map(svg => svg.clientWidth)")
    assert len(drawn) == window.run("document.querySelectorAll('.panels figure').length") > 0
    assert min(drawn) > 200
    assert window.run("document.documentElement.scrollWidth") <= width
    assert window.run(OVERFLOWING) == []
    assert [url for url in window.requests if not url.startswith("data:")] == [report.as_uri()]


@needs_chromium
def test_legend_hides_and_shows_a_series(window, report):
    show(window, report)
    every = window.run(POINTS)
    window.run(f"{BUTTON}.focus()")
    for key, pressed in (("Enter", "false"), (" ", "true")):
        window.press(key)
        window.send("Runtime.evaluate", expression=READY, awaitPromise=True)
        assert window.run(f"{BUTTON}.getAttribute('aria-pressed')") == pressed
        assert (window.run(POINTS) < every) == (pressed == "false")


@needs_chromium
def test_pointer_shows_the_value_of_a_point(window, report):
    show(window, report, height=2000)
    point = f"{FIGURE}.querySelector('.plot path[aria-roledescription=point]')"
    window.run(f"{point}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    x, y = window.run(
        f"(b => [b.x + b.width / 2, b.y + b.height / 2])({point}.getBoundingClientRect())"
    )
    window.move(x, y)
    window.move(x + 0.5, y)
    window.send("Runtime.evaluate", expression=READY, awaitPromise=True)
    shown = window.run("document.querySelector('#vg-tooltip-element').textContent")
    mean = table3.accuracies(experiment.result("table3").rows)["JapaneseVowels", "tslib", "ea-2"]
    assert "ea-2" in shown and "JAP" in shown
    assert f"{mean.value:.4g}" in shown


@needs_chromium
def test_dark_is_dark_and_print_is_light(window, report):
    colours = "['backgroundColor', 'color'].map(name => getComputedStyle(document.body)[name])"
    shades = {}
    for dark in (False, True):
        show(window, report, dark=dark)
        shades[dark] = [_brightness(colour) for colour in window.run(colours)]
    assert shades[False][0] > 0.9 > 0.3 > shades[False][1]
    assert shades[True][0] < 0.2 < 0.7 < shades[True][1]
    scheme = [{"name": "prefers-color-scheme", "value": "dark"}]
    window.send("Emulation.setEmulatedMedia", media="print", features=scheme)
    assert [_brightness(colour) for colour in window.run(colours)] == [1, 0]
    assert window.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert window.pdf().startswith(b"%PDF")


def _brightness(colour: str) -> float:
    return max(map(int, re.findall(r"\d+", colour)[:3])) / 255


@needs_chromium
def test_controls_have_names_and_ids_are_unique(window, report):
    show(window, report)
    nameless = (
        "[...document.querySelectorAll('button, a, [role=region]')]"
        ".filter(e => !(e.getAttribute('aria-label') || e.textContent.trim()))"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert window.run(nameless) == []
    ids = window.run("[...document.querySelectorAll('body [id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
