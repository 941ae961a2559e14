"""Language models: runs, their resumption, and comparison with softmax attention."""

import gzip
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from text_helpers import documents

from eattn.data.text import Document
from eattn.hf import EAForCausalLM
from paper.beyond import lm
from paper.beyond.lm import Plan
from paper.harness.experiment import result
from paper.harness.runlog import RunLog, matches, rows_of
from paper.harness.target import judge

TINY = Plan(
    mixers=("ea-6", "sa"),
    lrs=(2e-3,),
    single=(),
    repeated=(),
    plain=("ea-6", "la"),
    positioned=("sa",),
    long=(),
    longest=(),
    books=(),
    hidden=16,
    layers=1,
    length=32,
    batch_tokens=128,
    steps=6,
    evaluations=3,
    precision="float32",
    jobs=1,
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("lm")
    folder = out / "text"
    folder.mkdir()
    for name, content in documents():
        (folder / name).write_bytes(content)
    plan = replace(TINY, text=(str(folder),))
    log = RunLog(out / "lm.jsonl", "lm")
    assert list(lm.rows(plan, log)) == log.rows
    return plan, log


def test_every_model_has_a_row_with_its_evaluations(measured):
    _, log = measured
    runs = rows_of(log.rows, "run")
    assert list(lm.chosen(runs)) == [
        "ea-6",
        "sa",
        "ea-6, no convolution",
        "sa, learned positions",
    ]
    for row in runs:
        assert [point["tokens"] for point in row["points"]] == [256, 512, 768]
        assert row["points"][-1]["bits_per_byte"] == row["bits_per_byte"]
        assert 0 < row["points"][0]["seconds"] < row["seconds"]
        assert (row["text"], row["documents"]) == (["text"], [23, 1])
    assert len({row["parameters"] for row in runs[:2]}) == 1
    steps = rows_of(log.rows, "step")
    assert [row["mixer"] for row in steps] == ["ea-6", "sa"]
    assert all(0 < row["p20"] <= row["p50"] <= row["p80"] for row in steps)
    assert not list(log.path.parent.glob(".lm/*"))


def test_an_interrupted_run_continues_from_its_checkpoint(measured, tmp_path, monkeypatch):
    plan, log = measured
    *_, key = plan.runs(log.rows)
    (lost,) = log.find(key)
    with monkeypatch.context() as patch:
        patch.setattr(lm.shutil, "rmtree", lambda path: None)  # as if killed before the end
        lm.measure_run(key, text=plan.text, folder=tmp_path / ".lm")
    assert list(tmp_path.glob(".lm/*/last.pt"))
    text = log.path.read_text().splitlines(keepends=True)
    path = tmp_path / "lm.jsonl"
    path.write_text("".join(text[:-1]))
    again = list(lm.rows(plan, RunLog(path, "lm")))
    assert again[:-1] == log.rows[:-1]
    assert again[-1]["bits_per_byte"] == lost["bits_per_byte"]
    assert not list(tmp_path.glob(".lm/*"))


def test_the_best_model_comes_first_and_settings_are_noted(measured):
    _, log = measured
    table, times = lm.tables(log.rows)
    assert {line[0] for line in times.lines} == {"ea-6", "sa"}
    bits = [float(cells[1]) for cells in table.lines]
    assert bits == sorted(bits)
    ratios = {cells[0]: cells[2:4] for cells in table.lines}
    assert (ratios["ea-6"][0], ratios["sa"][1]) == ("1.000", "1.000")
    assert "in 23 documents; validated on" in table.notes[0]
    assert "the short convolution saves: " in table.notes[1]
    assert [panel.title[:3] for panel in lm.draw(log.rows).panels] == ["(a)"]


def test_published_rows_belong_to_the_full_plan():
    rows = rows_of(result("lm").rows, "run")
    plan = lm.plan(quick=False)
    assert {row["mixer"] for row in rows} <= {*plan.mixers, *plan.single}
    assert {row["mixer"] for row in rows if lm.kind(row)} <= {*plan.plain, *plan.positioned}
    for mixer in plan.longest:
        assert any(matches(row, plan.key(mixer)) for row in rows)
    changes = (dict(steps=1000), dict(lr=3e-3), dict(length=1024), dict(text=("wiki.txt",)))
    for change in changes:
        key = replace(Plan(), **change).key("ea-6")
        assert not any(matches(row, key) for row in rows)


def run(mixer: str, value: float, **fields):
    key = {"what": "run", "mixer": mixer, "short_conv": 4, "positions": False, "seed": 0}
    sizes = {"seconds": 100.0, "tokens": 1000, "parameters": 1000}
    return key | {"bits_per_byte": value, "points": []} | sizes | fields


BITS = {"ea-6": 2.0, "ea-6+decay": 1.8, "ea-6+gate": 1.9, "sa": 2.2, "sa+rope": 2.1}


@pytest.fixture(scope="module")
def staged():
    """Return the rows of all stages, without training."""

    def fake(log, keys, measure, jobs):
        for key in keys:
            # 0.004 is the best learning rate, of EA-6 0.016, two steps beyond the largest
            best = 0.016 if key["mixer"] == "ea-6" else 0.004
            value = BITS[key["mixer"]] + abs((key["lr"] or Plan.lr) - best)
            more = {"by_position": {"256": 2.0, "8192": 2.01}} if key["text"] else {}
            made = run(key["mixer"], value + (key["short_conv"] is None), **more)
            log.add(key, {n: v for n, v in made.items() if n not in key})
            yield from log.find(key)

    plan = Plan(tuple(BITS), single=(), positioned=(), long=tuple(BITS))
    log = RunLog(None, "lm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lm, "run_all", fake)
        patch.setattr(lm, "time_steps", lambda rounds, keys: [{"p50": 1.0} for _ in keys])
        patch.setattr(lm, "load_text", lambda files: None)
        patch.setenv("EATTN_DATA", "data")
        assert list(lm.rows(plan, log)) == list(lm.rows(plan, log))
    return log.rows


def test_longer_runs_and_books_follow_at_the_best_learning_rate(staged):
    found = lm.stages(staged)
    assert list(found) == [((), 300), ((), 1000), ((), 3000), (lm.BOOKS, 1000)]
    rates = {name: lm.lr_of(runs[0]) for name, runs in lm.chosen(found[(), 300]).items()}
    assert rates == dict.fromkeys(rates, 0.004) | {"ea-6": 0.016, "ea-6, no convolution": 0.016}
    swept = [row for row in found[(), 300] if row["mixer"] == "ea-6" and not lm.kind(row)]
    assert [lm.lr_of(row) for row in swept if not row["seed"]] == [
        *(1e-3, 2e-3, 4e-3, 8e-3),
        *(0.016, 0.032),
    ]
    for stage, mixers, count in (
        (((), 1000), set(BITS), 2),
        (((), 3000), set(BITS) - {"sa"}, 1),
        ((lm.BOOKS, 1000), set(BITS) - {"sa"}, 1),
    ):
        runs = lm.chosen(found[stage])
        assert set(runs) == mixers
        assert all(len(of) == count and "lr" in of[0] for of in runs.values())
    again = [row for row in found[(), 300] if row["seed"]]
    assert {row["mixer"] for row in again} == {"ea-6", "ea-6+decay"}


def test_stages_have_their_tables_and_targets(staged):
    names = [table.title for table in lm.tables(staged)]
    assert names == [
        "Bits per byte of validation text, 300 steps",
        "… by learning rate, seed 0",
        "Bits per byte of validation text, 1,000 steps",
        "Bits per byte of validation text, 3,000 steps",
        "Bits per byte of validation text of classic_books, 1,000 steps",
        "… by position",
        "Time of a training step",
    ]
    main, sweep, long, *_, places, _ = lm.tables(staged)
    assert main.lines[0][:5] == ["ea-6+decay", "1.800 ± 0.000", "0.900", "0.857", "0.004"]
    assert "saves: 1.000 with `ea-6`, 1.000 with `ea-6+decay`" in main.notes[1]
    assert sweep.head == ["lr", "0.001", "0.002", "0.004", "0.008", "0.016", "0.032"]
    assert "up to 2 seeds" in long.notes[0]
    assert places.head == ["positions", "256–512", "8k–16k"]
    judged = {verdict.target.name: verdict.value for verdict in judge(lm.TARGETS, staged)}
    assert judged["bits per byte: EA-6+decay / EA-6, 2 seeds"] == pytest.approx(0.9)
    assert judged["EA-6+decay: positions 8k–16k / 256–512"] == pytest.approx(1.005)
    one = [row for row in rows_of(staged, "run") if not row["seed"]]
    assert len(judge(lm.TARGETS, one)) == 3  # the ratio needs two seeds
    chart = lm.draw(staged)
    assert [panel.title[:3] for panel in chart.panels] == ["(a)", "(b)", "(c)"]


def test_models_have_as_many_parameters_as_ea_6():
    assert {m for m in Plan.mixers if lm.equal_ffn(m, 256, 4)} == {"ea-6+gate", "la+gate"}
    sizes = []
    for mixer in ("ea-6", "ea-6+decay", "ea-6+gate", "la+gate"):
        config = lm.model_settings(Plan().key(mixer)).model(257)
        with torch.device("meta"):
            sizes.append(sum(p.numel() for p in EAForCausalLM(config).parameters()))
    assert max(sizes) < 1.01 * sizes[0]
    assert min(sizes) > 0.99 * sizes[0]


class CountsContext(torch.nn.Module):
    """Gives the byte that comes L tokens before the next one a high score."""

    def __init__(self, lag: int) -> None:
        super().__init__()
        self.lag = lag

    def forward(self, tokens, use_cache, logits_to_keep):
        seen = torch.nn.functional.pad(tokens, (self.lag, 0))[:, 1 : tokens.shape[1] + 1]
        scores = 50.0 * torch.nn.functional.one_hot(seen, 257).float()
        return SimpleNamespace(logits=scores[:, -logits_to_keep:])


def test_positions_predict_the_same_bytes_after_more_text(monkeypatch):
    monkeypatch.setattr(lm, "DOUBLINGS", 4)
    rng = np.random.default_rng(0)
    period = 40  # known after 40 bytes
    content = bytes(rng.permutation(256)[:period].astype(np.uint8)) * 60
    found = lm.bits_by_position(CountsContext(period), Document("a", content), 32)
    assert list(found) == ["16", "32", "64", "128"]
    assert found["64"] == found["128"] == pytest.approx(0, abs=1e-6)
    assert found["16"] > found["32"] > 1
    with pytest.raises(ValueError, match="a must have at least 256 bytes, got 200"):
        lm.bits_by_position(CountsContext(period), Document("a", content[:200]), 32)


def test_books_are_found_in_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(lm, "DOUBLINGS", 2)
    monkeypatch.delenv("EATTN_DATA", raising=False)
    key = replace(TINY, text=lm.BOOKS).key("ea-6+decay")
    with pytest.raises(ValueError, match="of EATTN_DATA, which is not set"):
        lm.measure_run(key, text=(), folder=None)
    monkeypatch.setenv("EATTN_DATA", str(tmp_path))
    folder = tmp_path / "text" / "classic_books"
    folder.mkdir(parents=True)
    for name, count in (("train", 200), ("valid", 5)):
        content = b"".join(content for _, content in documents(count))
        (folder / f"{name}.txt.gz").write_bytes(gzip.compress(name.encode() + content))
    row = lm.measure_run(key, text=(), folder=None)
    assert key["text"] == ["classic_books"]
    assert row["documents"] == [1, 1]
    assert list(row["by_position"]) == ["16", "32"]
    assert all(4 < value < 10 for value in row["by_position"].values())


@pytest.mark.parametrize(("bits", "words"), [(2.0, "met"), (2.1, "missed")])
def test_ea_6_is_compared_with_softmax_attention(bits, words):
    rows = [run("ea-6", 9.0, short_conv=None), run("sa", 2.0), run("sa", 9.0, steps=30)]
    rows += [run("ea-6", bits - 0.1), run("ea-6", bits + 0.1, seed=1)]
    judged = {verdict.target.name: verdict for verdict in judge(lm.TARGETS, rows)}
    assert judged["bits per byte: EA-6 / SA"].words == words
    assert judged["EA-6: bits per byte"].value == pytest.approx(bits)
    assert judge(lm.TARGETS, [run("la", 1.0)]) == []
    lost = "300 steps: `sa` needs fewer bits than `ea-6`: 2 against 2.1 bits per byte."
    assert list(lm.losses(rows)) == [lost] * (words == "missed")
    steps = [{"what": "step", "mixer": m, "p50": t} for m, t in (("sa", 1), ("ea-6+decay", 2))]
    assert list(lm.losses(steps)) == ["Time of a training step: `sa` 1 s; `ea-6+decay` 2 s."]


def test_wrong_plans_raise_before_the_work():
    for change, reason in (
        (dict(mixers=("xx",)), "unknown mixer 'xx'"),
        (dict(batch_tokens=8), "at least length"),
        (dict(text=("missing.txt",)), "does not exist"),
    ):
        with pytest.raises(ValueError, match=reason):
            list(lm.rows(replace(TINY, **change), RunLog(None, "lm")))
