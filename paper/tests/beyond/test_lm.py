"""Language models: runs, their resumption, and comparison with softmax attention."""

from dataclasses import replace

import pytest

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from text_helpers import documents

from paper.beyond import lm
from paper.beyond.lm import Plan
from paper.harness.experiment import result
from paper.harness.runlog import RunLog
from paper.harness.target import judge

TINY = Plan(
    mixers=("ea-6", "sa"),
    plain=("ea-6", "la"),
    positioned=("sa",),
    hidden=16,
    layers=1,
    length=32,
    batch_tokens=128,
    steps=6,
    evaluations=3,
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
    assert list(lm.by_name(log.rows)) == [
        "ea-6",
        "sa",
        "ea-6, no convolution",
        "sa, learned positions",
    ]
    for row in log.rows:
        assert [point["tokens"] for point in row["points"]] == [256, 512, 768]
        assert row["points"][-1]["bits_per_byte"] == row["bits_per_byte"]
        assert 0 < row["points"][0]["seconds"] < row["seconds"]
        assert (row["text"], row["documents"]) == (["text"], [23, 1])
    assert len({row["parameters"] for row in log.rows[:2]}) == 1
    assert not list(log.path.parent.glob(".lm/*"))


def test_an_interrupted_run_continues_from_its_checkpoint(measured, tmp_path, monkeypatch):
    plan, log = measured
    *_, key = plan.runs()
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
    (table,) = lm.tables(log.rows)
    bits = [float(cells[1]) for cells in table.lines]
    assert bits == sorted(bits)
    assert "in 23 documents; validated on" in table.notes[0]
    assert [panel.title[:3] for panel in lm.draw(log.rows).panels] == ["(a)", "(b)"]


def test_published_rows_belong_to_the_full_plan():
    log = RunLog(None, "lm")
    log.rows = result("lm").rows
    full = lm.plan(quick=False)
    assert all(log.has(key) for key in full.runs())
    for change in (dict(steps=1000), dict(lr=1e-3), dict(length=1024), dict(text=("wiki.txt",))):
        assert not any(log.has(key) for key in replace(full, **change).runs())


def run(mixer: str, value: float, **fields):
    key = {"what": "run", "mixer": mixer, "short_conv": 4, "positions": False}
    return key | {"bits_per_byte": value, "seconds": 100.0} | fields


@pytest.mark.parametrize(("bits", "words"), [(2.0, "met"), (2.1, "missed")])
def test_ea_6_is_compared_with_softmax_attention(bits, words):
    rows = [run("ea-6", 9.0, short_conv=None), run("sa", 2.0), run("sa", 9.0, steps=30)]
    rows += [run("ea-6", bits - 0.1), run("ea-6", bits + 0.1)]  # two seeds
    judged = {verdict.target.name: verdict for verdict in judge(lm.TARGETS, rows)}
    assert judged["bits per byte: EA-6 / SA"].words == words
    assert judged["EA-6: bits per byte"].value == pytest.approx(bits)
    assert judge(lm.TARGETS, [run("la", 1.0)]) == []
    lost = "`sa` needs fewer bits than EA-6: 2 against 2.1 bits per byte."
    assert list(lm.losses(rows)) == [lost] * (words == "missed")


def test_wrong_plans_raise_before_the_work():
    for change, reason in (
        (dict(mixers=("xx",)), "unknown mixer 'xx'"),
        (dict(batch_tokens=8), "at least length"),
        (dict(text=("missing.txt",)), "does not exist"),
    ):
        with pytest.raises(ValueError, match=reason):
            lm.rows(replace(TINY, **change), RunLog(None, "lm"))
