"""The page in a real Chromium, where there is one: drawn, readable, answering, on any screen."""

import re
from pathlib import Path

import browser_helpers as browser
import pytest

from paper.report import plots
from paper.report.html.sections import SECTIONS

RESULTS = Path(__file__).parents[2] / "results"
CHROMIUM = browser.find()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

PICTURES = "[...document.querySelectorAll('.picture > svg')].filter(svg => svg.clientWidth)"
OVERFLOWING = """
[...document.querySelectorAll('body *')]
  .filter(e => !e.closest('.scroll, pre, .skip') && !e.closest('svg > *'))
  .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5)
  .map(e => e.outerHTML.slice(0, 80))
"""
CUT = f"""
{PICTURES}.flatMap(svg => [...svg.querySelectorAll('text')].filter(text => {{
  const box = text.getBBox(), all = svg.viewBox.baseVal;
  return box.x < -1 || box.y < -1 || box.x + box.width > all.width + 1
    || box.y + box.height > all.height + 1;
}}).map(text => text.textContent))
"""
# Marks of a series in the first figure that has it, shown and all.
COUNT = """
(() => {
  const figure = document.querySelector('[data-figure="table1"]');
  const marks = [...figure.querySelectorAll('[data-series]')]
    .filter(mark => mark.dataset.series === '["ea-6"]');
  return [marks.filter(mark => mark.getBoundingClientRect().width > 0).length, marks.length];
})()
"""
FIGURES = "[...document.querySelectorAll('.figure')].map(figure => figure.dataset.figure)"
BUTTON = """document.querySelector('[data-figure="table1"] [data-name="ea-6"]')"""
PANEL = """document.querySelector('[data-figure="table1"] .picture')"""


@pytest.fixture(scope="module")
def window():
    assert CHROMIUM is not None
    with browser.page(CHROMIUM) as page:
        yield page


@pytest.mark.parametrize("width", [375, 820, 1280, 1600])
def test_every_figure_is_drawn_and_nothing_sticks_out(window, report, width):
    window.open(report, width=width)
    assert window.errors == []
    assert {section.key for section in SECTIONS} == set(
        window.run("[...document.querySelectorAll('.figure')].map(f => f.dataset.figure)")
    )
    drawn = window.run(
        f"{PICTURES}.map(svg => [...svg.querySelectorAll('.mark, .map')]"
        ".filter(mark => { const box = mark.getBoundingClientRect();"
        " return box.width + box.height > 4; }).length)"
    )
    assert len(drawn) == window.run("document.querySelectorAll('.panels figure').length")
    assert all(drawn)
    assert window.run("document.documentElement.scrollWidth") <= width
    assert window.run(OVERFLOWING) == []
    assert window.run(CUT) == []


def test_only_the_file_itself_is_asked_for(window, report):
    window.requests.clear()
    window.open(report)
    assert {url.partition(":")[0] for url in window.requests} <= {"file", "data"}
    assert len([url for url in window.requests if url.startswith("file:")]) == 1


def test_a_series_is_hidden_and_shown_again_by_pointer_and_by_key(window, report):
    window.open(report)
    shown, every = window.run(COUNT)
    assert shown == every > 0
    window.run(f"{BUTTON}.click()")
    assert window.run(COUNT) == [0, every]
    assert window.run(f"{BUTTON}.getAttribute('aria-pressed')") == "false"
    window.run(f"{BUTTON}.focus()")
    for key, count in (("Enter", every), (" ", 0)):
        window.press(key)
        assert window.run(COUNT) == [count, every]
    assert window.errors == []


def test_the_pointer_reads_out_values_of_the_series_shown(window, report):
    window.open(report, width=375, height=2000)
    window.run(f"{PANEL}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    box = window.run(f"(b => [b.x, b.y, b.width, b.height])({PANEL}.getBoundingClientRect())")
    tip = f"{PANEL}.querySelector('.tip')"
    assert window.run(f"{tip}.hidden")
    window.move(box[0] + 0.98 * box[2], box[1] + 0.5 * box[3])
    table1 = [row for row in plots.read_rows(RESULTS / "table1.jsonl") if row["what"] == "time"]
    longest = max(row["x"] for row in table1 if row["axis"] == "L")
    told = window.run(f"{tip}.textContent")
    assert f"L, tokens: {longest:,}" in told
    (row,) = (r for r in table1 if (r["mixer"], r["axis"], r["x"]) == ("ea-6", "L", longest))
    assert f"ea-6{row['p50'] * 1e3:.4g}" in told
    assert window.run("document.documentElement.scrollWidth") <= 375
    window.run(f"{BUTTON}.click()")
    window.move(box[0] + 0.97 * box[2], box[1] + 0.5 * box[3])
    assert "ea-6" not in window.run(f"{tip}.textContent")
    window.move(1, 1)
    assert window.run(f"{tip}.hidden")


def test_arrow_keys_walk_through_the_values(window, report):
    window.open(report)
    window.run(f"{PANEL}.querySelector('svg').focus()")
    heads = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        window.press(key)
        heads.append(window.run(f"{PANEL}.querySelector('.tip strong').textContent"))
    assert heads == ["L, tokens: 512", "L, tokens: 1,024", "L, tokens: 512"]
    window.press("Escape")
    assert window.run(f"{PANEL}.querySelector('.tip').hidden")


def test_maps_are_read_out_too(window, report):
    window.open(report)
    found = """document.querySelector('[data-figure="fig1"] .map').closest('.picture')"""
    window.run(f"{found}.querySelector('svg').focus()")
    window.press("ArrowRight")
    inputs = plots.read_rows(RESULTS / "fig1.jsonl")
    (scores,) = (row["o"] for row in inputs if row["what"] == "scores")
    told = window.run(f"{found}.querySelector('.tip').textContent")
    assert told == f"query 0, key 1{float(f'{scores[0][1]:.3g}'):g}"


def test_dark_is_dark_and_paper_is_light(window, report):
    colours = "['backgroundColor', 'color'].map(name => getComputedStyle(document.body)[name])"
    shades = {}
    for dark in (False, True):
        window.open(report, dark=dark)
        shades[dark] = [_brightness(colour) for colour in window.run(colours)]
    assert shades[False][0] > 0.9 > 0.3 > shades[False][1]
    assert shades[True][0] < 0.2 < 0.7 < shades[True][1]
    scheme = [{"name": "prefers-color-scheme", "value": "dark"}]
    window.send("Emulation.setEmulatedMedia", media="print", features=scheme)
    paper, ink = (_brightness(colour) for colour in window.run(colours))
    assert (paper, ink) == (1, 0)
    assert window.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert window.pdf().startswith(b"%PDF")


def _brightness(colour: str) -> float:
    return max(map(int, re.findall(r"\d+", colour)[:3])) / 255


def test_every_control_has_a_name_and_every_name_is_unique(window, report):
    window.open(report)
    nameless = (
        "[...document.querySelectorAll('button, a, svg[role], [role=region]')]"
        ".filter(e => !(e.getAttribute('aria-label') || e.textContent.trim()))"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert window.run(nameless) == []
    ids = window.run("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
