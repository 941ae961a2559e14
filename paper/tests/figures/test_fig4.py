"""Figure 4: a tiny run end to end, and searches in which every cost is made up."""

import math
from dataclasses import replace

import pytest

from paper.figures import fig4
from paper.figures.fig4 import ATTEMPTS, GAP, GRAIN, Memory, Plan, fit, search
from paper.harness import bert, peak
from paper.harness.runlog import RunLog

TINY = Plan(
    mixers=("ea-6",),
    lengths=(512, 1024, 2048),
    batches=(2,),
    budget=12 / 1024,
    dim=48,
    depth=1,
    seconds=0.01,
)
LINEAR, QUADRATIC = Memory(12e6, 670e3, 0.0), Memory(12e6, 670e3, 650.0)


def size(model: Memory, batch: int, L: float) -> float:
    """Return the bytes of a step."""
    return model.fixed + batch * (model.linear * L + model.quadratic * L**2)


def of(rows: list[dict], what: str) -> list[dict]:
    return [row for row in rows if row["what"] == what]


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> RunLog:
    made = RunLog(tmp_path_factory.mktemp("fig4") / "fig4.jsonl", "fig4")
    list(fig4.rows(TINY, made))
    return made


def test_memory_grows_with_the_length(log):
    peaks = [row["peak_bytes"] for row in of(log.rows, "memory")]
    activations = 18 * 48 * 4  # bytes of a token in a block that the backward pass needs
    assert len(peaks) == 3
    assert all(p > 0.7 * activations * L for p, L in zip(peaks, TINY.lengths, strict=True))
    assert peaks[2] < 3 * activations * 2048


def test_longest_length_ran_and_a_longer_one_did_not_fit(log):
    (found,) = of(log.rows, "longest")
    room = found["budget"] - found["model_bytes"]
    tried = {row["L"]: row for row in of(log.rows, "tried")}
    assert 0 < found["peak_bytes"] == tried[found["L"]]["peak_bytes"] <= room
    assert tried[found["fails"]].get("peak_bytes", math.inf) > room
    assert found["L"] < found["fails"] <= max(1.05 * found["L"], found["L"] + 32)
    assert found["tokens_per_second"] == pytest.approx(2 * found["L"] / found["seconds"])


def test_every_length_is_timed_once(log):
    timed = of(log.rows, "time")
    assert [row["L"] for row in timed] == list(TINY.lengths)
    for row in timed:
        assert 0 < row["p20"] <= row["p50"] <= row["p80"] and row["runs"] >= 2
        assert row["tokens_per_second"] == pytest.approx(row["L"] / row["p50"])
        assert (row["model"], row["dim"], row["dropout"]) == ("smaller, for a test", 48, 0.0)
    before = log.path.read_bytes()
    list(fig4.rows(TINY, RunLog(log.path, "fig4")))
    assert log.path.read_bytes() == before


def test_tables_and_chart_show_the_rows(log):
    memory, longest, timed = fig4.tables(log.rows)
    assert [table.head[0] for table in (memory, longest, timed)] == ["L", "batch", "L"]
    assert longest.title.startswith("Longest L within 12 MiB")
    assert memory.notes[0].startswith("Fitted exponents of L: ea-6 ")
    chart = fig4.draw(log.rows)
    assert [panel.title[:3] for panel in chart.panels] == ["(a)", "(b)", "(c)", "(d)"]


def test_notes_claim_only_what_was_confirmed():
    row = {"mixer": "ea-6", "batch": 1, "model_bytes": 1, "budget": 1, "L": 100, "fails": 105}
    oom = row | {"failed": "out of memory: much"}
    assert list(fig4._longest_notes([oom]))[1:] == ["An L up to 5.0 % longer did not fit."]
    slow, open_ = row | {"failed": "not done after 9 s"}, row | {"fails": None}
    *_, first, second, third = fig4._longest_notes([slow, open_, oom])
    assert first.endswith("L = 105 did not finish (not done after 9 s), more may fit.")
    assert second.endswith("the search ended at L = 100, more may fit.")
    assert third.startswith("For the others, an L up to 5.0 %")


def test_a_step_leaves_gradients_in_every_weight(monkeypatch):
    kept, make = [], bert.make_model
    monkeypatch.setattr(bert, "make_model", lambda *a, **k: kept.append(make(*a, **k)) or kept[0])
    options = {"batch": 2, "length": 8, "dim": 48, "depth": 2, "device": "cpu"}
    assert fig4.step("ea-6", **options)().isfinite()
    assert kept[0].training
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in kept[0].parameters())


@pytest.mark.parametrize(
    ("change", "free"), [({"timed": 8}, 2**40), ({"patience": 0.1}, 2**40), ({}, 1)]
)
def test_slow_long_and_large_steps_keep_their_single_time(monkeypatch, change, free):
    monkeypatch.setattr(peak, "available_bytes", lambda: free)
    log, key = RunLog(None, "fig4"), {"mixer": "ea-6", "batch": 1, "L": 16}
    log.add({"what": "memory", **key}, {"seconds": 0.5, "peak_bytes": 10})
    (row,) = fig4.times(replace(TINY, **change), log, [{"what": "time", **key}])
    assert (row["p20"], row["p80"], row["runs"]) == (0.5, 0.5, 1)


def test_a_budget_below_the_model_is_rejected():
    with pytest.raises(ValueError, match=r"budget must exceed the 649 MiB .* got 0.5 GiB"):
        next(fig4.rows(Plan(budget=0.5), RunLog(None, "fig4")))


def test_an_interrupted_search_repeats_nothing(monkeypatch, tmp_path):
    asked: list[tuple[int, int]] = []

    def trial(target, most=None, /, *, batch, length, **rest) -> dict:
        asked.append((batch, length))
        peak_bytes = size(QUADRATIC, batch, length)
        if peak_bytes > (most or 20 * 2**30):
            return {"reason": "out of memory: more than allowed"}
        return {"peak_bytes": int(peak_bytes), "seconds": 1e9}  # too slow to be timed again

    monkeypatch.setattr(peak, "trial", trial)
    log, plan = RunLog(tmp_path / "fig4.jsonl", "fig4"), Plan(mixers=("sa-math",))
    list(fig4.rows(plan, log))
    assert len(asked) == len(set(asked)) == 6 + 2 * 3  # lengths; one that fits, one that does not
    lines = log.path.read_text().splitlines(keepends=True)
    log.path.write_text("".join(lines[:7]))  # within the first search
    list(fig4.rows(plan, RunLog(log.path, "fig4")))
    assert asked[12:] == asked[7:12]
    budget = replace(plan, budget=9.0)  # a larger budget repeats the search, not the curve
    list(fig4.rows(budget, RunLog(log.path, "fig4")))
    assert not set(asked[17:]) & set(asked[:6])


@pytest.mark.parametrize("true", [LINEAR, QUADRATIC, Memory(0.0, 5.0, 0.0), Memory(0.0, 0.0, 2.0)])
def test_memory_model_is_fitted_to_few_points(true):
    sizes = [(1, 256), (1, 512), (1, 2048), (4, 512)]
    found = fit((batch, L, size(true, batch, L)) for batch, L in sizes)
    assert size(found, 8, 1024) == pytest.approx(size(true, 8, 1024), rel=1e-6)
    assert size(found, 8, found.longest(8, 8e9)) == pytest.approx(8e9)
    assert min(found) >= 0
    with pytest.raises(ValueError, match="three lengths"):
        fit([(1, 256, 1.0), (2, 256, 2.0), (1, 512, 3.0)])


@pytest.mark.parametrize("limit", [31, 32, 33, 100, 12_345, 300_000])
@pytest.mark.parametrize("factor", [0.3, 0.99, 1.5])
def test_search_ends_between_two_lengths(limit, factor):
    tried: list[int] = []

    def fits(length: int) -> bool:
        tried.append(length)
        return length <= limit

    found = search(factor * limit, fits)
    assert len(set(tried)) == len(tried) <= ATTEMPTS
    assert all(length % GRAIN == 0 for length in tried)
    if limit < GRAIN:
        assert found == (None, GRAIN)
    else:
        longest, fails = found
        assert longest <= limit < fails <= max(longest * (1 + GAP), longest + GRAIN)
