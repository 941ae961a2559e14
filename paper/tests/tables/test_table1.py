"""Table 1: a tiny run end to end; exponents, targets and notes on made-up rows."""

import pytest

from eattn.nn import MIXERS, make_mixer
from paper.harness.runlog import Row, RunLog
from paper.harness.target import judge
from paper.tables import table1
from paper.tables.table1 import Decoding, Plan, power

SIZES = {"dim": 8, "dims": (), "positions": (4, 8, 16), "budget": 0.01}
TINY = Plan(("ea-6",), lengths=(16, 32, 64), orders=(2, 4), **SIZES)


def test_every_point_is_measured_once(tmp_path, monkeypatch):
    log = RunLog(tmp_path / "table1.jsonl", "table1")
    cost = table1.memory(TINY, table1.Point("ea-6", 16, 8, 16), log)  # in a separate process
    assert cost["peak_bytes"] >= 0
    monkeypatch.setattr(table1, "trial", lambda *args, **options: cost)
    rows = list(table1.rows(TINY, log))
    points = {(row["what"], row["mixer"], row["axis"], row["x"]) for row in rows}
    expected = {(what, "ea-6", "L", x) for what in ("memory", "time") for x in (16, 32, 64)}
    expected |= {(what, "ea-N", "t", x) for what in ("memory", "time") for x in (2, 4)}
    assert points == expected | {("decoding", "ea-6", "position", x) for x in (4, 8, 16)}
    for row in rows:
        assert row["what"] == "memory" or 0 < row["p20"] <= row["p50"] <= row["p80"]
    sizes = {row["state_bytes"] for row in rows if row["what"] == "decoding"}
    assert sizes == {8 * (2 * 7 + 1) * 4}
    before = log.path.read_bytes()
    assert list(table1.rows(TINY, RunLog(log.path, "table1"))) == rows
    assert log.path.read_bytes() == before
    training, decoding = table1.tables(rows)
    assert training.lines[0][:2] == ["ea-6", "O(tLD)"]
    assert decoding.lines == [["ea-6", "O(tD)", decoding.lines[0][2], "0.00"]]
    assert "ea-6" in table1.draw(rows).legend


def test_points_that_fail_are_reported_and_not_timed():
    plan = Plan(("la",), lengths=(16, 32), limit=0.01, **SIZES)
    rows = list(table1.rows(plan, RunLog(None, "table1")))
    assert [row["what"] for row in rows] == ["memory"] * 2 + ["decoding"] * 3
    assert "la, L = 16, D = 8: not done after 0.01 s." in list(table1.differences(rows))


def test_every_curve_has_enough_points_for_an_exponent():
    for plan in (table1.plan(quick=False), table1.plan(quick=True)):
        assert all(len(curve.points) >= 3 for curve in plan.curves())


@pytest.mark.parametrize("name", [*Plan().mixers, "ea-q17", "ea-16"])
def test_training_gives_a_value_and_gradients(name):
    y, *gradients = table1.training(name, length=20, dim=6)()
    assert y.numel() == 20 * 6
    assert gradients
    assert all(x.isfinite().all() for x in (y, *gradients))


@pytest.mark.parametrize("name", MIXERS)
def test_decoding_starts_at_the_same_position_every_time(name):
    layer = make_mixer(name, 6, heads=1, causal=True, max_len=64).eval()
    short, long = (Decoding(layer, position) for position in (10, 30))
    grows = name in ("sa", "sa-math", "sa+rope", "aft", "ea")
    assert long.state_bytes == short.state_bytes * (3 if grows else 1)
    for _ in range(2):
        short.rewind()
        short.run()
        assert (
            short.state.nbytes == short.state_bytes * (10 + table1.STEPS + 1 if grows else 10) // 10
        )


def made_up(time: float, memory: float, decoding: float, state: float) -> list[Row]:
    """Curves of every mechanism with these exponents from x = 2048 on; constant before."""
    rows: list[Row] = []
    for mixer in table1.PAPER["complexity"]:
        for x in (2**n for n in range(8, 16)):
            at = {"mixer": mixer, "axis": "L", "x": x, "L": x, "D": 64}
            rows.append(at | {"what": "time", "p50": max(x, 2048) ** time})
            rows.append(at | {"what": "memory", "peak_bytes": 2**20 * max(x, 2048) ** memory})
            cost = {"p50": x**decoding, "state_bytes": 64.0 * x**state}
            rows.append(at | {"what": "decoding", "axis": "position"} | cost)
    return rows


def test_exponents_are_fitted_to_the_upper_half():
    rows = made_up(2.0, 1.5, 1.0, 1.0)
    for cost, axis, value in (
        ("time", "L", 2),
        ("memory", "L", 1.5),
        ("state bytes", "position", 1),
    ):
        fitted = power(rows, "sa", cost, axis)
        assert fitted == (pytest.approx(value), (4096, 8192, 16384, 32768))
    flat = power(made_up(1.0, 1.0, 0.02, 0.0), "la", "decoding time", "position")
    assert (flat.value, flat.x[0]) == (pytest.approx(0.02), 256)  # all of a constant state


def test_failed_points_and_tiny_peaks_are_not_fitted():
    row = {"what": "memory", "mixer": "aft", "axis": "L"}
    rows = [row | {"x": n, "peak_bytes": 2**20 * n} for n in (1, 2, 4)]
    rows += [row | {"x": 8, "reason": "out of memory"}, row | {"x": 16, "peak_bytes": 4096}]
    assert power(rows, "aft", "memory", "L") == (pytest.approx(1.0), (1, 2, 4))
    with pytest.raises(LookupError, match="fewer than three points of memory along L for aft"):
        power(rows[1:], "aft", "memory", "L")


@pytest.mark.parametrize(
    ("exponents", "words"), [((1.1, 1.9, 0.04, 0.0), "met"), ((1.2, 1.6, 0.06, 0.1), "missed")]
)
def test_targets_are_judged_from_the_exponents(exponents, words):
    judged = judge(table1.TARGETS, made_up(*exponents))
    assert len(judged) == len(table1.TARGETS) == 8
    assert {verdict.words for verdict in judged} == {words}


def test_contradictions_of_the_paper_are_noted():
    notes = list(table1.differences(made_up(2.0, 1.02, -0.4, 1.0)))
    assert notes[1] == (
        "sa: memory grows as L^1.02 (L = 4096 to 32768), not L^2, because SDPA never holds the"
        " weights [L, L]; decoding time grows as p^-0.40 (p = 4096 to 32768), not p^1."
    )
    assert not any(note.startswith("gru") for note in notes)  # constant, below 0 is noise


def test_faster_mechanisms_are_listed_as_losses():
    rows = made_up(1, 1, 0, 0)
    rows = [row | {"p50": 1 + (row["mixer"] != "gru")} for row in rows]
    assert list(table1.losses(rows)) == [
        "`gru` trains faster than EA-6 at L = 32,768: by 2.00 ×.",
        "`gru` decodes faster than EA-6 at position = 32,768: by 2.00 ×.",
    ]
