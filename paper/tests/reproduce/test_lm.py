"""Language models side by side: trained for real, judged as they should be, and resumed."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')
pytest.importorskip("matplotlib")

from text_helpers import documents

from paper.bench.target import judge
from paper.report import lm as report
from paper.reproduce import lm
from paper.reproduce.lm import PROMISES, Plan

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
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("lm")
    for name, content in documents():
        (out / name).write_bytes(content)
    text = sorted(out.iterdir())
    files = lm.run(TINY, Console(quiet=True), out, files=text, jobs=1)
    return [json.loads(line) for line in files[0].read_text().splitlines()], files, text


def test_every_model_has_its_row_and_every_evaluation_is_a_point(measured):
    rows, _, _ = measured
    runs = {report.name(row): row for row in rows if row["what"] == "run"}
    assert set(runs) == {"ea-6", "sa", "ea-6, no convolution", "sa, learned positions"}
    for row in runs.values():
        assert [point["tokens"] for point in row["points"]] == [256, 512, 768]
        assert row["points"][-1]["bits_per_byte"] == row["bits_per_byte"]
        assert 0 < row["points"][0]["seconds"] < row["seconds"]
    assert runs["ea-6"]["parameters"] == runs["sa"]["parameters"]
    (last,) = (row for row in rows if row["what"] == "finished")
    assert last["config"]["text"]["learnt"]["documents"] == 23
    assert last["config"]["text"]["held_out"]["documents"] == 1


def test_a_cut_off_run_continues_and_leaves_nothing_behind(measured, tmp_path):
    rows, _, text = measured
    # As after a kill: one run is missing, and was in the middle of its training.
    *kept, lost = (row for row in rows if row["what"] == "run")
    path = tmp_path / "lm.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    mine = tmp_path / f".lm-{lost['date'].replace(':', '')}"
    key = {name: lost[name] for name in ("what", "mixer", "short_conv", "positions", "seed")}
    lm.measure_run(key, plan=TINY, files=text, folder=mine)
    assert list(mine.glob("*/last.pt"))
    (tmp_path / ".lm-2000-01-01T000000").mkdir()  # of a run that was given up
    lm.run(TINY, Console(quiet=True), tmp_path, files=text, jobs=1)
    again = [json.loads(line) for line in path.read_text().splitlines()]
    assert again[: len(kept)] == kept
    assert again[len(kept)]["bits_per_byte"] == lost["bits_per_byte"]
    assert again[-1]["what"] == "finished"
    assert not list(tmp_path.glob(".lm-*"))


def test_the_table_and_the_picture_are_there(measured):
    rows, files, _ = measured
    assert [path.suffix for path in files] == [".jsonl", ".png", ".svg"]
    assert all(path.stat().st_size > 2_000 for path in files)
    text = report.markdown(rows)
    assert "| sa, learned positions | " in text
    assert "23 documents to learn from, 1 held out, judged by" in text
    best = min((row for row in rows if row["what"] == "run"), key=lambda r: r["bits_per_byte"])
    assert text.splitlines()[2].startswith(f"| {report.name(best)} | {best['bits_per_byte']:.3f}")


@pytest.mark.parametrize(("bits", "verdict"), [(2.0, "must"), (2.1, "miss")])
def test_ea_6_is_held_to_softmax_attention(bits, verdict):
    def run(mixer, value, short_conv=4):
        key = {"what": "run", "mixer": mixer, "short_conv": short_conv, "positions": False}
        return key | {"bits_per_byte": value}

    rows = [run("ea-6", 9.0, None), run("sa", 2.0), run("sa", 9.0, None)]
    rows += [run("ea-6", bits - 0.1), run("ea-6", bits + 0.1)]  # two seeds
    judged = {row["name"]: row for row in judge(rows, PROMISES)}
    assert judged["bits per byte: EA-6 / SA"]["verdict"] == verdict
    assert judged["EA-6: bits per byte"]["value"] == pytest.approx(bits)
    assert not list(judge([run("la", 1.0)], PROMISES))


def test_plans_that_cannot_be_are_named():
    with pytest.raises(ValueError, match="unknown mixer 'xx'"):
        replace(TINY, mixers=("xx",))
    with pytest.raises(ValueError, match="at least length"):
        replace(TINY, batch_tokens=8)


def test_the_quick_plan_trains_all_models_on_less():
    quick, full = ([key for key, _ in plan.work()] for plan in (Plan.quick(), Plan()))
    assert quick == full
    assert {key["mixer"] for key in full} >= {"ea-2", "ea-6", "ea", "sa"}
    assert Plan.quick().steps * Plan.quick().batch_tokens < Plan().steps * Plan().batch_tokens / 4
