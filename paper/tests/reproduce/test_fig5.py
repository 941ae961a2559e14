"""Figure 5: a tiny run end to end, and a full one in which every cost is made up."""

import io
import json
from pathlib import Path

import pytest
from drawing_helpers import check_texts
from rich.console import Console

from eattn import cli
from paper.bench import peak
from paper.bench.measure import provenance
from paper.bench.target import judge
from paper.report import fig5 as report
from paper.report import plots
from paper.report.readme import fill, last_run
from paper.reproduce import fig5
from paper.reproduce.fig5 import Plan, run
from paper.reproduce.fig5_promises import PROMISES

pytest.importorskip("matplotlib")

GIB = 2**30
TINY = Plan(
    mixers=("ea-6", "sa"),
    batches=(2,),
    positions=(16, 20_000),
    prompts=(24,),
    chunk=10,
    tokens=3,
    burst=2,
    dim=48,
    depth=2,
)
PLACE = "<!-- reproduce:fig5 -->\n<!-- /reproduce:fig5 -->"


def measured(plan: Plan, out: Path) -> tuple[list[dict], str]:
    """The rows in the file, and what was printed."""
    console = Console(width=80, file=io.StringIO())
    files = run(plan, console, out)
    assert [path.name for path in files] == ["fig5.jsonl", "fig5.png", "fig5.svg"]
    return last_run(files[0]), console.file.getvalue()


def of(rows: list[dict], what: str) -> list[dict]:
    return [row for row in rows if row["what"] == what]


# ---- a tiny run ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> tuple[list[dict], str, Path]:
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fig5, "LONGEST", {})
        return *measured(TINY, out), out


def test_a_cache_takes_the_memory_it_holds_and_a_state_takes_none(tiny):
    rows, _, _ = tiny
    peaks = {(r["mixer"], r["position"]): r["peak_bytes"] for r in of(rows, "memory")}
    cache = 2 * 2 * 20_000 * 48 * 4 * 2  # two blocks, keys and values, two sequences
    assert 0.95 * cache < peaks["sa", 20_000] - peaks["sa", 16] < 1.2 * cache
    assert abs(peaks["ea-6", 20_000] - peaks["ea-6", 16]) < 0.05 * cache


def test_every_position_has_times_and_the_bytes_held_there(tiny):
    rows, _, _ = tiny
    found = {(r["mixer"], r["position"]): r for r in of(rows, "latency")}
    assert set(found) == {(mixer, p) for mixer in TINY.mixers for p in TINY.positions}
    for row in found.values():
        assert 0 < row["p20"] <= row["p50"] <= row["p80"]
        assert row["runs"] >= 3
        assert row["tokens_per_second"] == pytest.approx(2 / row["p50"])
    assert {found["ea-6", p]["state_bytes"] for p in TINY.positions} == {2 * 2 * 48 * 15 * 4}
    assert found["sa", 20_000]["state_bytes"] == 2 * 2 * 20_000 * 48 * 4 * 2


def test_prompts_have_time_and_memory(tiny):
    rows, text, _ = tiny
    for row in of(rows, "prefill"):
        assert (row["L"], row["chunk"]) == (24, 10)
        assert row["seconds"] > 0
        assert row["peak_bytes"] >= 0
    assert [row["mixer"] for row in of(rows, "prefill")] == ["ea-6", "sa"]
    assert "reading a prompt of L tokens, s, in chunks of 10" in " ".join(text.split())


def test_rows_say_what_was_run_and_a_small_model_is_not_judged_as_bert_base(tiny):
    rows, _, out = tiny
    for row in rows:
        if row["what"] in ("memory", "latency", "prefill"):
            assert (row["model"], row["dim"], row["depth"]) == ("smaller, for a test", 48, 2)
    assert rows[-1]["what"] == "finished"
    assert not of(rows, "ratio")  # none of the promised points is among these
    assert "A small model, for a test" in (out / "fig5.svg").read_text(encoding="utf-8")
    assert "| ea-6, batch 2 |" in fill(PLACE, out)


def test_the_model_of_the_paper_decodes_by_default_where_promises_are_made():
    for plan in (Plan(), Plan.quick()):
        assert (plan.dim, plan.depth) == (768, 12)
        assert plan.tokens >= 64
        assert {256, 16384} <= set(plan.positions)
        assert 8 in plan.batches
        assert {("sa", 8, 16384), ("ea-6", 8, 16384)} <= set(plan.points(8))
    assert ("sa", 8, 32768) not in set(Plan().points(8))


def test_mixers_that_cannot_be_filled_are_named():
    with pytest.raises(ValueError, match="mixers must be ea-N, sa or sa-math, got 'gru'"):
        Plan(mixers=("ea-6", "gru"))


# ---- a full run whose costs are made up ----------------------------------------------------------


class Machine:
    """Gives costs without running anything; caches of more than `room` bytes do not fit."""

    def __init__(self) -> None:
        self.room, self.drift, self.asked = 20 * GIB, 1.0, []

    def trial(self, target: str, *, limit: float, **size) -> dict:
        self.asked.append((target.partition(":")[2], *size.values()))
        if target.endswith("prefill"):
            pairs = 2e-7 * size["length"] ** 2 if size["name"] == "sa" else 0.0
            return {"peak_bytes": 10**8 + self.held(size), "seconds": 1e-3 * size["length"] + pairs}
        held = self.held(size)
        if held > self.room:
            return {"reason": "out of memory: cannot"}
        return {"peak_bytes": 2 * 10**7 + held, "seconds": 1.0}

    @staticmethod
    def held(size: dict) -> int:
        tokens = size.get("position", size.get("length"))
        if size["name"] == "sa":
            return 2 * 4 * 12 * 768 * size["batch"] * tokens
        return 4 * 12 * 768 * size["batch"] * (2 * (int(size["name"][3:]) + 1) + 1)

    def latency(self, plan: Plan, batch: int, of) -> list[dict]:
        rows = []
        for row in of:
            held = self.held(row | {"name": row["mixer"]})
            point = {"mixer": row["mixer"], "position": row["position"]}
            if "reason" in row:
                rows.append(point | {"reason": row["reason"]})
                continue
            drift = self.drift if row["position"] == 16384 and row["mixer"] == "ea-6" else 1.0
            p = drift * (0.015 + 0.001 * batch) + held / 20e9 * (row["mixer"] == "sa")
            times = {"p20": 0.95 * p, "p50": p, "p80": 1.1 * p, "runs": 64}
            rows.append(point | times | {"state_bytes": held, "tokens_per_second": batch / p})
        return rows


@pytest.fixture
def machine(monkeypatch) -> Machine:
    made_up = Machine()
    monkeypatch.setattr(peak, "trial", made_up.trial)
    monkeypatch.setattr(fig5, "latency", made_up.latency)
    return made_up


@pytest.mark.parametrize("plan", [Plan(), Plan.quick()], ids=["full", "quick"])
def test_a_run_judges_every_promise(machine, tmp_path, plan):
    rows, text = measured(plan, tmp_path)
    judged = of(rows, "ratio")
    assert [row["name"] for row in judged] == [promise.name for promise in PROMISES]
    assert {row["verdict"] for row in judged} == {"must"}
    assert "…" not in text, "a cell was cut"
    gap = next(row for row in judged if "position 16384: SA" in row["name"])
    assert gap["value"] == pytest.approx(
        (0.023 + Machine.held({"name": "sa", "batch": 8, "position": 16384}) / 20e9) / 0.023
    )


def test_a_state_that_slows_down_is_missed(machine, tmp_path):
    machine.drift = 1.06
    rows, _ = measured(Plan(), tmp_path)
    first, *rest = of(rows, "ratio")
    assert (first["value"], first["verdict"]) == (pytest.approx(1.06), "miss")
    assert {row["verdict"] for row in rest} == {"must"}


def test_all_promises_can_be_missed():
    rows = []
    for position in (256, 16384):
        for mixer in ("ea-6", "sa"):
            grown = position if mixer == "ea-6" else 100
            point = {"mixer": mixer, "batch": 8, "position": position, "model_bytes": 100}
            rows.append({"what": "memory", "peak_bytes": grown} | point)
            rows.append({"what": "latency", "p50": grown, "state_bytes": grown} | point)
    assert [row["verdict"] for row in judge(rows, PROMISES)] == ["miss"] * 5


def test_a_cache_that_does_not_fit_is_a_row_and_a_note(machine, tmp_path):
    machine.room = 5 * GIB
    rows, text = measured(Plan(), tmp_path)
    dead = [(r["batch"], r["position"]) for r in of(rows, "latency") if "reason" in r]
    assert dead == [(8, 16384)]
    assert "sa, batch 8, position 16384: out of memory: cannot." in text
    assert "| — |" in report.markdown(rows)
    names = {row["name"] for row in of(rows, "ratio")}
    assert "batch 8, position 16384: SA / EA-6" not in names


def test_what_fits_alone_but_not_beside_all_weights_is_not_timed(monkeypatch):
    monkeypatch.setattr(peak, "available_bytes", lambda: 1000)
    rows = [
        {"mixer": "ea-6", "position": 8, "peak_bytes": 10, "model_bytes": 300},
        {"mixer": "sa", "position": 8, "peak_bytes": 300, "model_bytes": 300},
        {"mixer": "sa", "position": 4, "reason": "why not"},
    ]
    rows[2]["model_bytes"] = 300
    reasons = dict(fig5._reasons(TINY, rows))
    assert set(reasons) == {("sa", 8), ("sa", 4)}
    assert reasons["sa", 4] == "why not"
    assert "that are free" in reasons["sa", 8]


def test_a_run_that_was_cut_off_measures_only_what_is_missing(machine, tmp_path, monkeypatch):
    rows, _ = measured(Plan(), tmp_path)
    path = tmp_path / "fig5.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:40]))  # within the times of a batch size
    here = {name: rows[0][name] for name in provenance()}
    monkeypatch.setattr("paper.bench.runlog.provenance", lambda: here)
    asked, machine.asked = machine.asked, []
    again, text = measured(Plan(), tmp_path)
    assert "continuing the run of" in text
    kept = sum(row["what"] == "memory" for row in rows[:40])
    assert machine.asked == asked[kept:]
    assert again == rows


def test_an_interrupt_ends_the_run_and_keeps_its_rows(machine, tmp_path, monkeypatch, capsys):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(fig5, "latency", interrupted)
    assert cli.main(["reproduce", "fig5", "--quick", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "eattn: interrupted\n"
    lines = (tmp_path / "fig5-quick.jsonl").read_text().splitlines()
    assert [json.loads(line)["what"] for line in lines] == ["memory"] * 9


def test_the_picture_has_a_column_for_every_batch_size(machine, tmp_path, monkeypatch):
    rows, _ = measured(Plan(), tmp_path)
    with plots.style():
        figure = report.draw(rows)
        texts = check_texts(figure, monkeypatch)
    assert {f"(b) Time per token, batch {batch}" for batch in (1, 4, 8)} <= {*texts}
    assert [len(axes.lines) for axes in figure.axes] == [3] * 8


def test_the_same_rows_give_the_same_picture(machine, tmp_path):
    measured(Plan(), tmp_path)
    before = [(tmp_path / f"fig5{suffix}").read_bytes() for suffix in (".png", ".svg")]
    assert [path.read_bytes() for path in report.redraw(tmp_path / "fig5.jsonl")] == before


def test_the_time_of_a_whole_sequence_is_the_area_below_the_points():
    assert report.walked([(10, 2.0), (20, 4.0), (40, 4.0)], 20) == 10 * 2 + 10 * 3
    assert report.walked([(10, 2.0), (20, 4.0), (40, 4.0)], 40) == 10 * 2 + 10 * 3 + 20 * 4
