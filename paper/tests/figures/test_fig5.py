"""Figure 5: a tiny run end to end, and decoding from states that were filled directly."""

from types import SimpleNamespace

import pytest
import torch

from eattn.nn import EncoderState
from paper.figures import fig5
from paper.figures.fig5 import Decoder, Plan, Stream, alternate, prefill, room_for
from paper.harness.runlog import RunLog
from paper.harness.target import judge

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
SIZE = {"dim": 48, "depth": 2}
MIXER = pytest.mark.parametrize("name", ["ea-6", "sa"])


def of(rows: list[dict], what: str) -> dict[tuple, dict]:
    return {(row["mixer"], row["position"]): row for row in rows if row["what"] == what}


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> RunLog:
    made = RunLog(tmp_path_factory.mktemp("fig5") / "fig5.jsonl", "fig5")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fig5, "LONGEST", {"sa": 20_000})
        assert list(fig5.rows(TINY, made)) == made.rows
        list(fig5.rows(TINY, RunLog(made.path, "fig5")))  # measures nothing again
    assert len(made.path.read_text().splitlines()) == len(made.rows) == 10
    return made


def test_a_cache_takes_memory_and_a_state_does_not(log):
    peaks = {point: row["peak_bytes"] for point, row in of(log.rows, "memory").items()}
    cache = 2 * 2 * 20_000 * 48 * 4 * 2  # two blocks, keys and values, two sequences
    assert 0.95 * cache < peaks["sa", 20_000] - peaks["sa", 16] < 1.2 * cache
    assert abs(peaks["ea-6", 20_000] - peaks["ea-6", 16]) < 0.05 * cache


def test_every_position_has_times_and_state_bytes(log):
    found = of(log.rows, "latency")
    for row in found.values():
        assert 0 < row["p20"] <= row["p50"] <= row["p80"] and row["runs"] >= 3
        assert row["tokens_per_second"] == pytest.approx(2 / row["p50"])
        assert (row["model"], row["dim"], row["depth"]) == ("smaller, for a test", 48, 2)
    assert {found["ea-6", p]["state_bytes"] for p in TINY.positions} == {2 * 2 * 48 * 15 * 4}
    assert found["sa", 20_000]["state_bytes"] == 2 * 2 * 20_000 * 48 * 4 * 2


def test_tables_and_chart_show_the_rows(log):
    tables = list(fig5.tables(log.rows))
    assert [table.head for table in tables] == [["position", "16", "20000"]] * 3 + [["L", "24"]] * 2
    assert tables[0].notes[0].startswith("Batch 2: generating 20,000 tokens one by one takes ea-6 ")
    titles = [panel.title[:3] for panel in fig5.draw(log.rows).panels]
    assert titles == ["(a)", "(b)", "(c)", "(d)"]


@pytest.mark.parametrize(("drift", "met"), [(1, True), (64, False)])
def test_targets_follow_the_growth_from_early_to_late(drift, met):
    rows = []
    for mixer, factor in (("ea-6", drift), ("sa", 64 // drift)):
        for position, grown in ((fig5.EARLY, 100), (fig5.LATE, 100 * factor)):
            point = {"mixer": mixer, "batch": 8, "position": position, "model_bytes": 100}
            rows.append({"what": "memory", "peak_bytes": grown} | point)
            rows.append({"what": "latency", "p50": grown, "state_bytes": grown} | point)
    assert [verdict.met for verdict in judge(fig5.TARGETS, rows)] == [met] * 5
    assert len(judge(fig5.TARGETS, rows, quick=True)) == 2
    assert {fig5.EARLY, fig5.LATE} <= set(fig5.plan(quick=True).positions)


def test_points_that_do_not_fit_have_a_reason():
    trials = [
        {"mixer": "ea-6", "model_bytes": 300, "peak_bytes": 10},
        {"mixer": "sa", "model_bytes": 300, "peak_bytes": 300},
        {"mixer": "sa", "model_bytes": 300, "reason": "why not"},
    ]
    fits, large, failed = fig5.without_time(trials, 1000)
    assert fits is None and "free memory" in large and failed == "why not"


def test_mixers_without_a_filled_state_are_rejected():
    with pytest.raises(ValueError, match="mixers must be ea-N, sa or sa-math, got 'gru'"):
        next(fig5.rows(Plan(mixers=("ea-6", "gru")), RunLog(None, "fig5")))


def test_time_of_a_sequence_is_the_area_below_the_points():
    curve = [(10, 2.0), (20, 4.0), (40, 4.0)]
    assert fig5.total(curve, 20) == 10 * 2 + 10 * 3
    assert fig5.total(curve, 40) == 10 * 2 + 10 * 3 + 20 * 4


def decoder(name: str, *, room: int = 40) -> Decoder:
    return Decoder(name, batch=2, room=room, **SIZE)


def tensors(state: EncoderState) -> list[torch.Tensor]:
    """Return the tensors of all blocks that a token reads."""
    names = ("k", "v") if hasattr(state.layers[0], "k") else ("s", "z", "shift")
    return [getattr(layer, name) for layer in state.layers for name in names]


@MIXER
def test_a_filled_state_resembles_one_after_a_prompt(name):
    filled, real = decoder(name).at(32), prefill(name, batch=2, length=32, chunk=8, **SIZE)()
    assert filled.nbytes == real.nbytes
    for ours, theirs in zip(tensors(filled), tensors(real), strict=True):
        assert ours.shape == theirs.shape
        assert ours.stride()[-2:] == theirs.stride()[-2:]
        assert 0.2 < ours.abs().mean() / theirs.abs().mean() < 5  # of the same scale
    starts = [x.data_ptr() for x in tensors(filled)]
    assert len(set(starts)) == len(starts)  # no two blocks share memory


@MIXER
def test_decoding_continues_from_the_position_without_copies(name):
    stream = Stream(decoder(name), 30)
    before, size, starts = stream.x_t, stream.state_bytes, tensors(stream.state)
    assert min(stream.seconds(10)) > 0
    assert stream.x_t.isfinite().all() and not torch.equal(stream.x_t, before)
    grown = 2 * 10 * 48 * 4 * 2 * 2 if name == "sa" else 0  # keys and values of 10 tokens
    assert stream.state.nbytes == size + grown
    if name == "sa":
        after = [x.data_ptr() for x in tensors(stream.state)]
        assert after == [x.data_ptr() for x in starts]


@MIXER
def test_chunks_of_a_prompt_leave_the_same_state(name):
    options = {"batch": 2, "length": 20, **SIZE}
    chunks, whole = (prefill(name, chunk=chunk, **options)() for chunk in (8, 20))
    for ours, theirs in zip(tensors(chunks), tensors(whole), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_streams_take_turns_and_first_tokens_do_not_count():
    log: list[str] = []

    def stream(name: str) -> SimpleNamespace:
        return SimpleNamespace(seconds=lambda n: log.append(name) or [100.0] + [1.0] * (n - 1))

    found = alternate({name: stream(name) for name in "abc"}, tokens=7, burst=3)
    rounds = [log[:3], log[3:6], log[6:]]
    assert [sorted(names) for names in rounds] == [["a", "b", "c"]] * 3
    assert len(set(map(tuple, rounds))) > 1  # the order changes
    assert found == {name: [1.0] * 9 for name in "abc"}


def test_a_cache_has_room_for_all_turns():
    stream = Stream(decoder("sa", room=room_for(10, tokens=7, burst=3)), 10)
    alternate({"sa": stream}, tokens=7, burst=3)
    assert stream.state.layers[0].length == stream.model.config.max_len
