"""Time and memory of a training step of one BERT-base block with every mechanism.

A step is forward and backward into parameters and input, on one sequence in float32; the optimizer
is left out, because it costs the same with every mixer. `q+k+v` is the block without attention: no
mechanism that mixes tokens can be cheaper. Every mechanism first runs once in a separate process,
for its peak memory and because it may fail; those that are fast enough are then timed in turn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from eattn.nn import ElementwiseAttention, TransformerConfig, check_mixer
from eattn.nn.block import TransformerBlock
from eattn.ops import Taylor, reference
from paper.harness import peak
from paper.harness.bert import DIM, OURS, better_mixers
from paper.harness.chart import LOOKS, Chart, bars
from paper.harness.measure import Candidate, Times, Work, inputs, interleave, relative_error
from paper.harness.runlog import Key, Row, RunLog, group, rows_of
from paper.harness.table import Table
from paper.harness.target import Rows, Target, ratio

TITLE = "A block of BERT-base"
SUM = "q+k+v"
OTHERS = ("sa", "sa-math", "la", "aft", "taylor", "gru", "linear-rnn")
OFTEN = (SUM, OURS, "sa")  # timed three times as often, because the targets compare them


@dataclass(frozen=True)
class Plan:
    """Sizes and limits; the targets are for 768 channels."""

    mixers: tuple[str, ...] = (SUM, "ea-2", OURS, "ea", *OTHERS)
    causal: tuple[str, ...] = (OURS, "sa")  # measured causal, too
    lengths: tuple[int, ...] = (2048, 8192)
    dim: int = DIM
    patience: float = 15.0  # seconds; a slower step is not timed again
    budget: float = 150.0  # seconds for the interleaved steps of one length
    limit: float = 600.0  # seconds after which a step is stopped

    def keys(self, length: int) -> list[Row]:
        """Return the keys of the single steps of one length."""
        causal = [(name, True) for name in self.causal if name in self.mixers]
        every = [*((name, False) for name in self.mixers), *causal]
        return [{"what": "trial", "mixer": name, "causal": c, "L": length} for name, c in every]


def plan(quick: bool) -> Plan:
    """Return the full plan, or the shorter length for the mechanisms of the targets."""
    return Plan(mixers=OFTEN, lengths=(2048,), budget=30.0) if quick else Plan()


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Check the layer, run every step alone, and then time the steps of a length in turn."""
    for name in plan.mixers:
        if name != SUM:
            check_mixer(name)
    keys = [key for length in plan.lengths for key in plan.keys(length)]
    timed = [_timed(plan, key) for key in keys]
    log.expect([*keys, *timed])
    if not all(map(log.has, [*keys, *timed])):
        log.add({"what": "correctness", "who": OURS}, check())
    yield from log.find({"what": "correctness"})
    for length in plan.lengths:
        of_length = plan.keys(length)
        for key in of_length:
            yield from log.measure(key, partial(trial, plan, key))
        work = partial(times, plan, log)
        yield from log.measure_together((_timed(plan, key) for key in of_length), work)


def _timed(plan: Plan, key: Key) -> Row:
    return {**key, "what": "step", "shape": (1, key["L"], plan.dim)}


class Sum(ElementwiseAttention):
    """y = out(q + k + v): the projections of EA without attention."""

    def forward(self, x: Tensor, **options: Any) -> Any:
        q, k, v = self.in_proj(x).chunk(3, -1)
        return self.out_proj(q + k + v)


def make_block(name: str, length: int, *, dim: int = DIM, causal: bool = False) -> TransformerBlock:
    """Return a block of BERT-base, or one of its proportions, without dropout; seeded."""
    torch.manual_seed(0)
    mixer = OURS if name == SUM else name
    config = TransformerConfig.bert_base(dim=dim, ffn=4 * dim, mixer=mixer, causal=causal)
    block = TransformerBlock(config, dropout=0.0, max_len=length)
    if name == SUM:
        block.mixer = Sum(dim)
    return block


def parameters(name: str, length: int, dim: int) -> int:
    """Return the number of parameters of a block."""
    with torch.device("meta"):
        return sum(x.numel() for x in make_block(name, length, dim=dim).parameters())


def step(name: str, *, length: int, dim: int, causal: bool) -> Work:
    """Return a training step on one sequence, warmed up on a short one."""
    block = make_block(name, length, dim=dim, causal=causal)
    _train(block, *inputs((1, min(length, 64), dim), 2))
    return partial(_train, block, *inputs((1, length, dim), 2))


def _train(block: nn.Module, x: Tensor, gy: Tensor) -> Tensor:
    block.zero_grad()
    x = x.detach().requires_grad_()  # as within a stack of blocks
    y: Tensor = block(x)
    y.backward(gy)
    return y.detach()


@torch.no_grad()
def check() -> Row:
    """Compare EA-6's layer with the literal formula in float64; raise if they differ."""
    (x,) = inputs((2, 33, 48), 1)
    layer = ElementwiseAttention(48)
    y = layer(x)
    layer = layer.double()
    q, k, v = layer.in_proj(x.double()).chunk(3, -1)
    expected = layer.out_proj(reference.ea_series(q, k, v, order=6))
    error = relative_error(y, expected)
    if not error < reference.condition(Taylor(6)) * torch.finfo(torch.float32).eps:
        raise RuntimeError(f"the layer is wrong by {error:.1e}, so nothing was timed")
    return {"error": error}


def trial(plan: Plan, key: Key) -> Row:
    """Run one step in a separate process."""
    options = {"name": key["mixer"], "causal": key["causal"], "length": key["L"], "dim": plan.dim}
    return peak.trial("paper.benchmarks.block:step", limit=plan.limit, **options)


def times(plan: Plan, log: RunLog, keys: Sequence[Key]) -> Iterator[Row]:
    """Time steps in turn; a slow or large one keeps its only time, a failed one its reason."""
    free = peak.available_bytes() or inf
    trials = [log.find({**key, "what": "trial", "shape": None})[0] for key in keys]
    again = {
        label(row): row
        for row in trials
        if row.get("seconds", inf) <= plan.patience and row["peak_bytes"] <= free / 4
    }
    candidates = {
        name: Candidate(
            step(row["mixer"], length=row["L"], dim=plan.dim, causal=row["causal"]),
            share=3 if row["mixer"] in OFTEN else 1,
        )
        for name, row in again.items()
    }
    round_ = sum(candidates[name].share * row["seconds"] for name, row in again.items())
    rounds = int(min(15, max(3, plan.budget / max(round_, 1e-9))))
    found = interleave(candidates, rounds=rounds)
    for row in trials:
        new: Row = {name: row[name] for name in ("reason", "peak_bytes") if name in row}
        if label(row) in found:
            new |= vars(found[label(row)])
        elif "seconds" in row:
            new |= vars(Times.single(row["seconds"]))
        if "p50" in new:
            new["tokens_per_second"] = row["L"] / new["p50"]
        size = {"parameters": parameters(row["mixer"], row["L"], plan.dim)}
        yield new | size | {"dtype": "float32", "threads": torch.get_num_threads()}


def _ratio(slow: str, fast: str, length: int) -> Any:
    """Return a function of rows: the time of one mechanism over that of another."""
    at = {"what": "step", "causal": False, "shape": (1, length, DIM)}
    return ratio(at | {"mixer": slow}, at | {"mixer": fast})


_times = partial(Target, unit="×")
_highlight = (
    "faster than softmax attention, a training step of a whole block of BERT-base at 8,192 tokens"
)
_faster = partial(_times, at_least=1.0)
TARGETS = (
    _times("L = 2048: EA-6 / q+k+v", _ratio(OURS, SUM, 2048), at_most=1.1, quick=True),
    _faster("L = 2048: SA / EA-6", _ratio("sa", OURS, 2048)),
    _times("L = 8192: EA-6 / q+k+v", _ratio(OURS, SUM, 8192), at_most=1.1),
    _faster("L = 8192: SA / EA-6", _ratio("sa", OURS, 8192), highlight=_highlight),
)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield a table of all mechanisms for each length."""
    for length, steps in sorted(group(rows_of(rows, "step"), "L").items()):
        notes = [f"`{label(row)}`: {row['reason']}." for row in steps if "reason" in row]
        if any(row.get("runs") == 1 for row in steps):
            notes.insert(0, "A star marks a single run in a separate process.")
        title = f"A training step, L = {length:,}; × is relative to `{SUM}`"
        head = ["mechanism", "step", "×", "peak memory", "parameters"]
        yield Table(title, head, [_cells(row, steps) for row in steps], notes)


def _cells(row: Row, steps: Rows) -> list[str]:
    """Return the line of one mechanism."""
    cells = ["—", "", ""]
    if "p50" in row:
        base = [other["p50"] for other in steps if other["mixer"] == SUM and "p50" in other]
        ratio = f"{row['p50'] / base[0]:.2f}" if base else ""
        time = f"{row['p50']:.2f} s" + "*" * (row["runs"] == 1)
        cells = [time, ratio, f"{row['peak_bytes'] / 2**30:.2f} GiB"]
    return [f"`{label(row)}`", *cells, f"{row['parameters'] / 1e6:.1f} M"]


def draw(rows: Sequence[Row]) -> Chart | None:
    """Draw a panel of bars for each length."""
    steps = [row for row in rows_of(rows, "step") if "p50" in row]
    looks = LOOKS | {f"{name}, causal": look for name, look in LOOKS.items()}
    panels = []
    for letter, (length, found) in zip("abcdef", sorted(group(steps, "L").items()), strict=False):
        points = [{"series": label(r), "y": r["p50"], "text": f"{r['p50']:.2g} s"} for r in found]
        points.sort(key=lambda point: float(point["y"]))
        title = f"({letter}) A training step, L = {length:,}"
        panels.append(bars(title, points, x="seconds, logarithmic axis", log=True, looks=looks))
    return Chart(panels) if panels else None


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the mechanisms that are faster or need less memory than EA-6 in the same block."""
    for field, words in (("p50", "is faster"), ("peak_bytes", "needs less memory")):
        for causal in (False, True):
            steps = [row for row in rows_of(rows, "step") if row["causal"] == causal]
            others = [row for row in steps if row["mixer"] != SUM]
            yield from better_mixers(others, field, "(causal) " * causal + words, "L")


def label(row: Row) -> str:
    """Return the name of a mechanism, such as `ea-6, causal`."""
    return str(row["mixer"] + ", causal" * row["causal"])
