"""Figure 4: a tiny run end to end, and a full one in which every cost is made up."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from drawing_helpers import check_texts
from rich.console import Console

from eattn import cli
from paper.bench import peak
from paper.bench.measure import provenance
from paper.bench.target import judge
from paper.bench.training import step
from paper.report import fig4 as report
from paper.report import plots
from paper.report.readme import fill, last_run
from paper.reproduce import fig4
from paper.reproduce.fig4 import Plan, run
from paper.reproduce.fig4_promises import PROMISES, exponents

pytest.importorskip("matplotlib")

MIB, GIB = 2**20, 2**30
TINY = Plan(
    mixers=("ea-6",),
    lengths=(512, 1024, 2048),
    batches=(2,),
    budget=12 * MIB,
    dim=48,
    depth=1,
    seconds=0.01,
)
PLACE = "<!-- reproduce:fig4 -->\n<!-- /reproduce:fig4 -->"


def measured(plan: Plan, out: Path) -> tuple[list[dict], str]:
    """The rows in the file, and what was printed."""
    console = Console(width=80, file=io.StringIO())
    files = run(plan, console, out)
    assert [path.name for path in files] == ["fig4.jsonl", "fig4.png", "fig4.svg"]
    return last_run(files[0]), console.file.getvalue()


def of(rows: list[dict], what: str) -> list[dict]:
    return [row for row in rows if row["what"] == what]


# ---- a tiny run ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> tuple[list[dict], str, Path]:
    out = tmp_path_factory.mktemp("out")
    return *measured(TINY, out), out


def test_a_real_run_measures_memory_that_grows_with_the_length(tiny):
    rows, _, _ = tiny
    peaks = [row["peak_bytes"] for row in of(rows, "memory")]
    assert len(peaks) == 3
    activations = 18 * 48 * 4  # a token in a block: what the backward needs again
    for length, size in zip(TINY.lengths, peaks, strict=True):
        assert size > 0.7 * activations * length
    assert peaks[2] < 3 * activations * 2048


def test_the_longest_that_fits_really_ran_and_a_longer_one_did_not(tiny):
    rows, _, _ = tiny
    (claim,) = of(rows, "longest")
    room = TINY.budget - claim["model_bytes"]
    assert 0 < claim["peak_bytes"] <= room
    tried = {row["L"]: row for row in of(rows, "tried")}
    assert tried[claim["L"]]["peak_bytes"] == claim["peak_bytes"]
    assert tried[claim["fails"]].get("peak_bytes", math.inf) > room
    assert claim["L"] < claim["fails"] <= max(1.05 * claim["L"], claim["L"] + 32)
    assert claim["tokens_per_second"] == pytest.approx(2 * claim["L"] / claim["seconds"])


def test_every_length_is_timed(tiny):
    rows, _, _ = tiny
    assert [row["L"] for row in of(rows, "time")] == list(TINY.lengths)
    for row in of(rows, "time"):
        assert 0 < row["p20"] <= row["p50"] <= row["p80"]
        assert row["runs"] >= 2
        assert row["tokens_per_second"] == pytest.approx(row["L"] / row["p50"])


def test_rows_say_what_was_run_and_that_it_was_not_bert_base(tiny):
    rows, text, out = tiny
    for row in rows:
        if row["what"] in ("memory", "tried", "longest", "time"):
            assert (row["model"], row["dim"], row["depth"]) == ("smaller, for a test", 48, 1)
            assert (row["optimizer"], row["dropout"], row["device"]) == (False, 0.0, "cpu")
    assert rows[-1]["what"] == "finished"
    assert "no judgement" in text
    assert "A small model, for a test" in (out / "fig4.svg").read_text(encoding="utf-8")
    assert "| ea-6 |" in fill(PLACE, out)


def test_a_step_leaves_gradients_in_every_weight(monkeypatch):
    kept = []
    make = fig4.bert.make_model
    monkeypatch.setattr(
        "paper.bench.training.make_model", lambda *a, **k: kept.append(make(*a, **k)) or kept[0]
    )
    loss = step("ea-6", batch=2, length=8, dim=48, depth=2)()
    assert loss.isfinite()
    assert kept[0].training
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in kept[0].parameters())


def test_the_model_of_the_paper_is_trained_by_default():
    for plan in (Plan(), Plan.quick()):
        assert (plan.dim, plan.depth) == (768, 12)
        assert plan.model_bytes("sa") == 2 * 4 * 12 * 7_087_872  # as bert-base-uncased, per block
        assert {"ea-6", "sa", "sa-math"} <= set(plan.mixers)
    assert {1024, 2048, 8192} <= set(Plan().lengths)


# ---- a full run whose costs are made up ----------------------------------------------------------

RAM = 20 * GIB


def needed(name: str, batch: int, length: int) -> float:
    """Bytes of a step of BERT-base, roughly."""
    weights = 750.0 * length**2 if name == "sa-math" else 0.0
    return 12e6 + batch * (672e3 * length + weights)


class Machine:
    """Gives the costs of steps without running them, and remembers what it was asked for."""

    def __init__(self, slower: float = 1.0) -> None:
        self.slower, self.asked = slower, []

    def trial(self, target: str, most: int | None = None, /, *, limit: float, **size) -> dict:
        assert target == "paper.bench.training:measured_step"
        name, batch, length = size["name"], size["batch"], size["length"]
        self.asked.append((name, batch, length))
        peak_bytes = needed(name, batch, length)
        seconds = self.seconds(name, batch, length)
        if most is not None and peak_bytes > most:
            return {"reason": "out of memory: more than allowed"}
        if peak_bytes > RAM:
            return {"reason": "out of memory: cannot"}
        if seconds > limit:
            return {"reason": f"not done after {limit:g} s"}
        return {"peak_bytes": int(peak_bytes), "seconds": seconds}

    def seconds(self, name: str, batch: int, length: int) -> float:
        pairs = {"sa": 1.1e-6, "sa-math": 2.5e-6}.get(name, 0.0)
        slow = self.slower if name.startswith("ea") else 1.0
        return batch * length * (3.2e-3 * slow + pairs * length)

    def times(self, plan: Plan, length: int, trials) -> list[dict]:
        rows = []
        for row in trials:
            if "seconds" in row:
                p = row["seconds"]
                found = {"mixer": row["mixer"], "batch": 1, "p20": p, "p50": p, "p80": p, "runs": 2}
                rows.append(found | {"tokens_per_second": length / p, "L": length})
        return rows


@pytest.fixture
def machine(monkeypatch) -> Machine:
    made_up = Machine()
    monkeypatch.setattr(peak, "trial", made_up.trial)
    monkeypatch.setattr(fig4, "times", made_up.times)
    return made_up


def test_a_full_run_finds_what_fits_with_few_tries(machine, tmp_path):
    rows, text = measured(Plan(), tmp_path)
    room = Plan().budget - Plan().model_bytes("sa")
    claims = {(row["mixer"], row["batch"]): row for row in of(rows, "longest")}
    assert len(claims) == 4 * 3
    for (mixer, batch), row in claims.items():
        assert needed(mixer, batch, row["L"]) <= room < needed(mixer, batch, row["fails"])
    assert len(of(rows, "tried")) == 2 * len(claims)  # one that fits and one that does not
    assert len(machine.asked) == len(set(machine.asked))
    assert "…" not in text, "a cell was cut"


def test_points_that_die_are_rows_and_notes(machine, tmp_path):
    rows, text = measured(Plan(limit=60.0), tmp_path)
    dead = {
        (row["mixer"], row["L"]): row["reason"] for row in of(rows, "memory") if "reason" in row
    }
    assert dead == {
        ("sa", 8192): "not done after 60 s",
        ("sa-math", 8192): "out of memory: cannot",
    }
    assert "sa-math, L = 8192: out of memory: cannot." in text
    assert "- sa, L = 8192: not done after 60 s." in report.markdown(rows)
    names = {row["name"] for row in of(rows, "ratio")}
    assert "L = 8192: tokens/s, EA-6 / SA" not in names  # nothing to judge it from


def test_a_search_that_was_cut_off_tries_nothing_again(machine, tmp_path, monkeypatch):
    rows, _ = measured(Plan(), tmp_path)
    path = tmp_path / "fig4.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    cut = [n for n, row in enumerate(rows) if row["what"] == "tried"][4]  # within a search
    path.write_text("".join(lines[: cut + 1]))
    here = {name: rows[0][name] for name in provenance()}
    monkeypatch.setattr("paper.bench.runlog.provenance", lambda: here)
    asked, machine.asked = machine.asked, []
    again, text = measured(Plan(), tmp_path)
    assert "continuing the run of" in text
    measured_before = sum(row["what"] in ("memory", "tried") for row in rows[: cut + 1])
    assert machine.asked == asked[measured_before:]
    assert again == rows


def test_an_interrupt_ends_the_run_and_keeps_its_rows(machine, tmp_path, monkeypatch, capsys):
    trial = machine.trial

    def interrupted(*args, **options) -> dict:
        if len(machine.asked) == 5:
            raise KeyboardInterrupt
        return trial(*args, **options)

    monkeypatch.setattr(peak, "trial", interrupted)
    assert cli.main(["reproduce", "fig4", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "eattn: interrupted\n"
    rows = [json.loads(line) for line in (tmp_path / "fig4.jsonl").read_text().splitlines()]
    assert [row["what"] for row in rows] == ["memory"] * 5


def test_the_notes_say_only_what_was_confirmed(machine, tmp_path):
    rows, _ = measured(Plan(), tmp_path)
    claims = of(rows, "longest")
    most = max(100 * row["fails"] / row["L"] - 100 for row in claims)
    assert f"One up to {most:.1f} % longer did not fit." in list(report.notes(rows))
    claims[0] |= {"failed": "not done after 9 s"}
    claims[1] |= {"fails": None}
    del claims[1]["failed"]
    notes = list(report.notes(rows))
    slow, open_ = (f"{row['mixer']}, batch {row['batch']}: " for row in claims[:2])
    assert any(n.startswith(slow) and "not done after 9 s), more may fit" in n for n in notes)
    assert any(n.startswith(open_) and n.endswith("more may fit.") for n in notes)
    assert any(note.startswith("Of the others, one up to") for note in notes)


def test_a_budget_comes_from_the_command_line(machine, tmp_path):
    args = ["reproduce", "fig4", "--quick", "--budget", "3GiB", "--out", str(tmp_path)]
    assert cli.main(args) == 0
    rows = last_run(tmp_path / "fig4-quick.jsonl")
    assert {row["budget"] for row in of(rows, "longest")} == {3 * GIB}


@pytest.mark.parametrize(
    ("size", "reason"),
    [("much", "budget must be a size"), ("600MB", "budget must leave room beside .* 0.63 GiB")],
)
def test_a_budget_that_will_not_do_is_named(size, reason):
    with pytest.raises(ValueError, match=reason):
        Plan().here(size)


@pytest.mark.parametrize(
    ("slower", "verdicts"),
    [(1.0, ["must"] * 5), (2.0, ["must", "must", "must", "miss", "must"])],
)
def test_promises_are_judged_from_the_rows(machine, tmp_path, slower, verdicts):
    machine.slower = slower
    rows, _ = measured(Plan(), tmp_path)
    judged = of(rows, "ratio")
    assert [row["name"] for row in judged] == [promise.name for promise in PROMISES]
    assert [row["verdict"] for row in judged] == verdicts
    by_name = {row["name"]: row["value"] for row in judged}
    assert by_name["L = 2048: memory, SA materialised / EA-6"] == pytest.approx(
        needed("sa-math", 1, 2048) / needed("ea-6", 1, 2048)
    )


def test_more_memory_than_promised_and_falling_throughput_are_missed():
    rows = []
    for L in (1024, 2048, 8192):
        for mixer, size in (("ea-6", L**1.1), ("sa", 0.4 * L**1.1), ("sa-math", 2 * L**1.1)):
            point = {"mixer": mixer, "batch": 1, "L": L}
            rows.append({"what": "memory", "peak_bytes": size} | point)
            rows.append({"what": "time", "tokens_per_second": 300 / L} | point)
    rows += [{"what": "exponent"} | row for row in exponents(rows)]
    assert [row["verdict"] for row in judge(rows, PROMISES)] == ["miss"] * 5


def test_the_picture_shows_every_mixer_and_the_inverse_curves(machine, tmp_path, monkeypatch):
    rows, _ = measured(Plan(), tmp_path)
    with plots.style():
        figure = report.draw(rows)
        texts = check_texts(figure, monkeypatch)
    assert {*Plan().mixers, "L = c / batch", "(b) Longest L within 8 GiB"} <= {*texts}
    memory, longest, along, time = figure.axes
    assert [len(axes.lines) for axes in (memory, longest, along, time)] == [4, 8, 4, 4]
    drawn = dict(zip(*longest.lines[0].get_data(), strict=True))
    name = longest.lines[0].get_label()
    assert drawn == {r["batch"]: r["L"] for r in of(rows, "longest") if r["mixer"] == name}


def test_the_same_rows_give_the_same_picture(machine, tmp_path):
    measured(Plan(), tmp_path)
    before = [(tmp_path / f"fig4{suffix}").read_bytes() for suffix in (".png", ".svg")]
    assert [path.read_bytes() for path in report.redraw(tmp_path / "fig4.jsonl")] == before


@pytest.mark.parametrize("change", [{"timed": 8}, {"patience": 0.1}])
def test_what_is_long_is_timed_once(change):
    trials = [{"mixer": "ea-6", "seconds": 0.5, "peak_bytes": 10}]
    (row,) = fig4.times(replace(TINY, **change), 16, trials)
    assert (row["p20"], row["p80"], row["runs"]) == (0.5, 0.5, 1)


def test_no_step_is_timed_beside_more_memory_than_there_is(monkeypatch):
    monkeypatch.setattr(peak, "available_bytes", lambda: 1)
    trials = [{"mixer": "ea-6", "seconds": 0.5, "peak_bytes": 10}, {"mixer": "sa", "reason": "no"}]
    (row,) = fig4.times(TINY, 16, trials)
    assert (row["mixer"], row["p50"], row["runs"]) == ("ea-6", 0.5, 1)
    assert torch.get_num_threads() == row["threads"]
