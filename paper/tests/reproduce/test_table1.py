"""Table 1: a tiny run end to end, and exponents, promises and notes from rows made by hand."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from eattn.nn import MIXERS
from paper.bench.measure import provenance
from paper.bench.mechanisms import Decoding, decoder, training
from paper.bench.target import judge
from paper.report import plots
from paper.report import table1 as report
from paper.report.readme import fill, last_run
from paper.reproduce import table1
from paper.reproduce.exponents import PROMISES
from paper.reproduce.table1 import Plan

pytest.importorskip("matplotlib")

PAPERS = tuple(name for name in MIXERS if name != "ea-q17")  # which the paper does not have
TINY = Plan(
    mixers=("ea-6",),
    lengths=(16, 32, 64),
    dim=8,
    dims=(),
    length=16,
    orders=(2, 4),
    positions=(4, 8, 16),
    steps=2,
    budget=0.01,
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> tuple[Path, str]:
    """The folder, and what was printed."""
    out = tmp_path_factory.mktemp("out")
    console = Console(width=80, file=io.StringIO())
    files = table1.run(TINY, console, out)
    assert [path.name for path in files] == ["table1.jsonl", "table1.png", "table1.svg"]
    return out, console.file.getvalue()


def test_every_point_is_a_row(measured):
    out, _ = measured
    rows = last_run(out / "table1.jsonl")
    points = {(r["what"], r["mixer"], r["axis"], r["x"]) for r in rows if "x" in r}
    expected = {(what, "ea-6", "L", x) for what in ("memory", "time") for x in (16, 32, 64)}
    expected |= {(what, "ea-N", "t", x) for what in ("memory", "time") for x in (2, 4)}
    assert points == expected | {("decoding", "ea-6", "position", x) for x in (4, 8, 16)}
    for row in rows:
        if row["what"] in ("time", "decoding"):
            assert 0 < row["p20"] <= row["p50"] <= row["p80"]
    assert {row["state_bytes"] for row in rows if row["what"] == "decoding"} == {
        8 * (2 * 7 + 1) * 4
    }
    assert rows[-1]["what"] == "finished"


def test_what_was_measured_is_printed_and_drawn(measured):
    out, text = measured
    assert "ea-6: state bytes, exponent in position" in text
    assert "O(tLD)" in text
    assert "…" not in text, "a cell was cut"
    assert (out / "table1.png").read_bytes().startswith(b"\x89PNG")
    assert "ea-6" in (out / "table1.svg").read_text(encoding="utf-8")


def test_the_run_makes_a_table_of_the_readme(measured):
    out, _ = measured
    place = "<!-- reproduce:table1 -->\n<!-- /reproduce:table1 -->"
    assert "| ea-6 | O(tLD) |" in fill(place, out)


def test_a_run_that_was_cut_off_measures_only_what_is_missing(measured, tmp_path, monkeypatch):
    out, _ = measured
    path = tmp_path / "table1.jsonl"
    lines = (out / "table1.jsonl").read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-6]))  # less decoding, exponents, promises and the end

    def measure_again(*args, **kwargs):
        raise AssertionError("a point that was kept was measured again")

    here = {name: json.loads(lines[0])[name] for name in provenance()}  # even after a commit
    monkeypatch.setattr("paper.bench.runlog.provenance", lambda: here)
    monkeypatch.setattr(table1, "memory", measure_again)
    monkeypatch.setattr(table1, "times", measure_again)
    console = Console(width=80, file=io.StringIO())
    table1.run(TINY, console, tmp_path)
    assert "continuing the run of" in console.file.getvalue()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == len(lines)
    assert len({row["date"] for row in rows}) == 1


def test_a_point_that_dies_is_a_row_and_the_curve_goes_on():
    plan = Plan(mixers=("la",), lengths=(16, 32), dim=8, dims=(), limit=0.01)
    (curve,) = plan.curves()
    trials = [table1.memory(plan, point, lambda name, cost: None) for point in curve.points]
    assert [trial["reason"] for trial in trials] == ["not done after 0.01 s"] * 2
    alive = [trials[0], trials[1] | {"seconds": 0.001}]
    (time,) = table1.times(plan, curve, alive, lambda name, cost: None)
    assert time["x"] == 32
    dead = {"what": "memory", "mixer": "la", "axis": "L"} | trials[0]
    assert "la, L = 16, D = 8: not done after 0.01 s." in list(report.notes([dead]))


# ---- what is timed -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*MIXERS, "ea-16"])
def test_training_gives_a_value_and_gradients(name):
    y, *gradients = training(name, length=20, dim=6)()
    assert y.numel() == 20 * 6
    assert gradients
    assert all(x.isfinite().all() for x in (y, *gradients))


@pytest.mark.parametrize("name", MIXERS)
def test_decoding_goes_on_after_the_prompt(name):
    layer = decoder(name, 6, max_len=40)
    short, long = (Decoding(layer, position, steps=3) for position in (10, 30))
    grows = name in ("sa", "sa-math", "aft", "ea")
    assert long.state_bytes == short.state_bytes * (3 if grows else 1)
    for _ in range(2):  # every run starts from the same position
        short.rewind()
        short.run()
        assert short.state.nbytes == short.state_bytes * (14 if grows else 10) // 10


def test_the_plans_reach_what_is_promised():
    for plan in (Plan(), Plan.quick()):
        assert plan.mixers == PAPERS
        assert plan.positions[0] == 256
        assert plan.positions[-1] >= 16384
        assert all(len(curve.points) >= 3 for curve in plan.curves())


# ---- exponents, promises, notes ------------------------------------------------------------------


def line(what: str, mixer: str, axis: str, points: dict[int, dict]) -> list[dict]:
    return [{"what": what, "mixer": mixer, "axis": axis, "x": x} | y for x, y in points.items()]


def synthetic(time: float, memory: float, decoding: float, state: float) -> list[dict]:
    """Curves of every mechanism with these exponents, from x = 2048 on; a constant hides them."""
    rows = []
    for mixer in PAPERS:
        lengths = [2**n for n in range(8, 16)]
        rows += line("time", mixer, "L", {L: {"p50": max(L, 2048) ** time} for L in lengths})
        peaks = {L: {"peak_bytes": 2**20 * max(L, 2048) ** memory} for L in lengths}
        rows += line("memory", mixer, "L", peaks)
        steps = {L: {"p50": L**decoding, "state_bytes": 64.0 * L**state} for L in lengths}
        rows += line("decoding", mixer, "position", steps)
    for row in rows:
        row |= {"L": row["x"], "D": 64}
    return rows


def test_exponents_are_those_of_the_upper_half():
    rows = list(table1.exponents(synthetic(2.0, 1.5, 1.0, 1.0)))
    found = {(row["of"], row["axis"]): row for row in rows if row["mixer"] == "sa"}
    assert found["time", "L"]["value"] == pytest.approx(2.0)
    assert found["memory", "L"]["value"] == pytest.approx(1.5)
    assert found["decoding time", "position"]["value"] == pytest.approx(1.0)
    assert all(tuple(row["points"]) == (4096, 8192, 16384, 32768) for row in found.values())


def test_a_state_that_does_not_grow_is_fitted_from_the_first_position_on():
    rows = list(table1.exponents(synthetic(1.0, 1.0, 0.02, 0.0)))
    found = {row["of"]: row for row in rows if row["axis"] == "position" and row["mixer"] == "la"}
    assert found["state bytes"]["value"] == 0
    assert found["decoding time"]["value"] == pytest.approx(0.02)
    assert found["decoding time"]["points"][0] == 256


def test_points_without_a_number_and_tiny_peaks_are_left_out():
    points = {n: {"peak_bytes": 2**20 * n} for n in (1, 2, 4)}
    points |= {8: {"reason": "out of memory"}, 16: {"peak_bytes": 4096}}
    (row,) = table1.exponents(line("memory", "aft", "L", points))
    assert (tuple(row["points"]), row["value"]) == ((1, 2, 4), pytest.approx(1.0))
    assert not list(table1.exponents(line("memory", "aft", "L", {1: {"peak_bytes": 2**30}})))


@pytest.mark.parametrize(
    ("time", "memory", "decoding", "state", "verdict"),
    [(1.1, 1.9, 0.04, 0.0, "must"), (1.2, 1.6, 0.06, 0.1, "miss")],
)
def test_promises_are_judged_from_the_exponents(time, memory, decoding, state, verdict):
    rows = synthetic(time, memory, decoding, state)
    rows += [{"what": "exponent"} | row for row in table1.exponents(rows)]
    judged = list(judge(rows, PROMISES))
    assert [row["name"] for row in judged] == [promise.name for promise in PROMISES]
    assert {row["verdict"] for row in judged} == {verdict}


def exponent(mixer: str, of: str, axis: str, value: float) -> dict:
    points = [1024, 2048, 4096]
    return dict(what="exponent", mixer=mixer, of=of, axis=axis, value=value, points=points)


def test_what_contradicts_the_paper_is_said_and_what_agrees_is_not():
    agrees = [exponent("sa-math", "memory", "L", 1.9), exponent("gru", "time", "L", 3.0)]
    agrees += [exponent("la", "decoding time", "position", -0.4)]  # constant, and noise
    differs = [exponent("sa", "memory", "L", 1.02), exponent("ea-N", "memory", "t", 0.01)]
    _, *notes = report.notes(agrees + differs)
    assert notes == [
        "sa: memory grows as L^1.02 (L = 1024 to 4096), not L^2, as SDPA never holds the weights"
        " [L, L].",
        "ea-N: memory grows as t^0.01 (t = 1024 to 4096), not t^1, as the backward makes the powers"
        " anew instead of keeping them.",
    ]


def test_the_paper_stands_beside_the_exponents():
    rows = [exponent("ea-6", "time", "L", 1.0), exponent("ea-N", "time", "t", 0.4)]
    rows += [exponent("ea-6", "state bytes", "position", -0.0001)]
    (cells,) = report.cells(rows)
    assert cells[:6] == ["ea-6", "O(tLD)", "1.00", "", "0.40", "O(tLD)"]
    assert cells[9:] == ["O(tD)", "", "0.00"]


def test_every_mechanism_has_a_place_and_a_look_of_its_own():
    assert set(report.PAPER) == set(report.LOOKS) == set(PAPERS)
    assert len(set(report.LOOKS.values())) == len(PAPERS)


def test_the_picture_shows_every_mechanism():
    with plots.style():
        figure = report.draw(synthetic(1.0, 1.0, 0.5, 1.0))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(report.LOOKS)
    assert all(len(axes.lines) == len(PAPERS) for axes in figure.axes)
    state = figure.axes[3]
    assert [text.get_text() for text in state.texts] == [", ".join(report.LOOKS)]  # one for all
