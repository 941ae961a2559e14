"""Figure 5: the cost of inference with BERT-base.

The model is causal and generates token by token, EA through its recurrent state, SA with a KV cache
whose memory is allocated before. Every memory is measured in a separate process; (a) includes the
weights. All mixers and positions of a batch size are timed in turn. States and caches are filled to
a position directly: the cost of a token depends on how much it reads, not on the content.
"""

import random
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import inf
from typing import Any, TypeVar

import torch
from torch import Tensor

from eattn.nn import DecodingState, EncoderState, TransformerEncoder, check_mixer
from eattn.nn.decoding_state import KVCache
from eattn.nn.qk_range import SPREAD
from eattn.ops import accumulate
from paper.harness import bert, peak
from paper.harness.bert import OURS, better_mixers, make_model, mixer_points
from paper.harness.chart import Chart, Panel, lines
from paper.harness.measure import Work, inputs, quantiles
from paper.harness.runlog import Key, Row, RunLog, find_row, group, rows_of
from paper.harness.table import Table, grid, number, size
from paper.harness.target import Rows, Target, ratio

TITLE = "Figure 5: the cost of inference"
PAPER: dict[str, Any] = {
    "claims": (
        "EA’s memory is constant in L and hardly depends on the batch; SA’s grows with both.",
        "EA takes the same time for every token, SA longer and longer; the batch matters little to"
        " EA and much to SA.",
        "EA-2 and EA-6 cost nearly the same.",
    )
}
GIB, MIB = 2**30, 2**20
EARLY, LATE = 256, 16384  # positions of the contract
LONGEST = {"sa": 16384, "sa-math": 16384}  # last position with a cache
SAMPLE = 16  # random tokens that fill a state or a cache, repeated as often as needed
FEW = 8  # tokens decoded when only memory is measured
SPARE = 0.8  # share of the free memory for everything that is timed together

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Plan(bert.ModelPlan):
    """Points, budgets and limits."""

    mixers: tuple[str, ...] = ("ea-2", OURS, "sa")
    batches: tuple[int, ...] = (1, 4, 8)
    positions: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
    prompts: tuple[int, ...] = (1024, 4096, 16384)
    chunk: int = 1024  # tokens of a prompt that are read at once
    tokens: int = 96  # timed at every position, at least
    burst: int = 8  # tokens in a row
    limit: float = 600.0  # seconds after which a process is stopped

    def points(self, batch: int) -> list[Row]:
        """Return the keys of the memory at every position, for one batch size."""
        return [
            {"what": "memory", "mixer": name, "batch": batch, "position": position} | self.key
            for position in self.positions
            for name in self.mixers
            if LONGEST.get(name, inf) >= position
        ]

    def reads(self) -> list[Row]:
        """Return the keys of the prompts."""
        same = {"batch": 1, "chunk": self.chunk} | self.key
        lengths = [(length, name) for length in self.prompts for name in self.mixers]
        return [{"what": "prefill", "mixer": name, "L": L} | same for L, name in lengths]


def plan(quick: bool) -> Plan:
    """Return the full plan, or fewer points with those of the contract among them."""
    few = Plan(batches=(1, 8), positions=(EARLY, 2048, LATE), prompts=(1024, 4096), limit=120.0)
    return replace(few if quick else Plan(), device=bert.default_device())


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Measure memory and then time per token of each batch size; prompts at the end."""
    for name in plan.mixers:
        if check_mixer(name) is None and name not in LONGEST:
            raise ValueError(f"mixers must be ea-N, sa or sa-math, got {name!r}")
    points = [key for batch in plan.batches for key in plan.points(batch)]
    log.expect([*points, *map(_timed, points), *plan.reads()])
    for batch in plan.batches:
        of_batch = [key for key in points if key["batch"] == batch]
        for key in of_batch:
            yield from log.measure(key, partial(memory, plan, key))
        yield from log.measure_together(map(_timed, of_batch), partial(latency, plan, log))
    for key in plan.reads():
        yield from log.measure(key, partial(prompt, plan, key))


def _timed(key: Key) -> Row:
    return {**key, "what": "latency"}


def memory(plan: Plan, key: Key) -> Row:
    """Measure the memory above the weights that holding and decoding a position takes."""
    row = _trial(plan, key, "generate", position=key["position"], tokens=FEW)
    return {name: row[name] for name in row if name != "seconds"}  # it went into filling


def prompt(plan: Plan, key: Key) -> Row:
    """Measure time and memory of reading a prompt in chunks, once."""
    row = _trial(plan, key, "prefill", length=key["L"], chunk=key["chunk"])
    rate = {"tokens_per_second": key["L"] / row["seconds"]} if "seconds" in row else {}
    return row | rate


def _trial(plan: Plan, key: Key, function: str, **options: int) -> Row:
    target = f"paper.figures.fig5:{function}"
    shape = {"batch": key["batch"], "device": plan.device} | plan.size
    row = peak.trial(target, limit=plan.limit, name=key["mixer"], **shape, **options)
    return row | plan.conditions(key["mixer"])


def latency(plan: Plan, log: RunLog, keys: Sequence[Key]) -> Iterator[Row]:
    """Time a token of every mixer at every position in turn, or state why it cannot be timed.

    All positions of a mixer share its weights and the memory of its cache.
    """
    points = [(key["mixer"], key["position"]) for key in keys]
    trials = [log.find({**key, "what": "memory"})[0] for key in keys]
    free = (peak.available_bytes() or inf) if plan.device == "cpu" else inf
    reasons = dict(zip(points, without_time(trials, free), strict=True))
    alive = [point for point in points if reasons[point] is None]
    decoders = {}
    for name in dict.fromkeys(name for name, _ in alive):
        last = max(position for mixer, position in alive if mixer == name)
        shape = {"batch": keys[0]["batch"], "room": room_for(last, plan.tokens, plan.burst)}
        decoders[name] = Decoder(name, device=plan.device, **shape, **plan.size)
    streams = {(name, position): Stream(decoders[name], position) for name, position in alive}
    found = alternate(streams, tokens=plan.tokens, burst=plan.burst)
    for point in points:
        row = plan.conditions(point[0])
        if point in streams:
            times = quantiles(found[point])
            row |= {"state_bytes": streams[point].state_bytes} | vars(times)
            yield row | {"tokens_per_second": keys[0]["batch"] / times.p50}
        else:
            yield row | {"reason": reasons[point]}


def without_time(trials: Rows, free: float) -> Iterator[str | None]:
    """Yield the reason why a trial cannot be timed together with all weights, or None."""
    weights = sum({row["mixer"]: row["model_bytes"] for row in trials}.values())
    for row in trials:
        needed = weights + row.get("peak_bytes", 0)
        if "reason" in row:
            yield row["reason"]
        elif needed > SPARE * free:
            yield f"needs {size(needed)} of {size(free)} free memory"
        else:
            yield None


# ---- decoding ------------------------------------------------------------------------------------


class Decoder:
    """A causal model, with its state at any position up to `room` tokens.

    The memory of a KV cache is allocated once, when first needed, and read up to the position.
    """

    def __init__(
        self, name: str, *, batch: int, room: int, dim: int, depth: int, device: str = "cpu"
    ) -> None:
        self.model = make_model(name, dim=dim, depth=depth, causal=True, max_len=room)
        self.model.to(device).eval()
        self.expansion, self.batch, self.room = check_mixer(name), batch, room
        self.x_t = inputs((batch, 1, dim), 1)[0][:, 0].to(device)
        self.caches: list[tuple[Tensor, Tensor]] = []

    @torch.inference_mode()
    def at(self, position: int) -> EncoderState:
        """Return the states of all blocks after `position` tokens."""
        depth = self.model.config.depth
        if self.expansion is not None:
            return EncoderState(tuple(self._series(position, block) for block in range(depth)))
        if not self.caches:
            self.caches = [self._cache() for _ in range(depth)]
        return EncoderState(
            tuple(KVCache(k, v, position, None, self.room, [position]) for k, v in self.caches)
        )

    def _series(self, position: int, seed: int) -> DecodingState:
        """Return the state of SAMPLE random tokens, as if each came position / SAMPLE times."""
        rng = torch.Generator().manual_seed(seed)
        k, v = torch.randn(2, self.batch, SAMPLE, self.model.config.dim, generator=rng)
        state = accumulate(SPREAD * k, v, expansion=self.expansion)
        scale = position / SAMPLE
        return replace(state, s=state.s * scale, z=state.z * scale).to(self.x_t.device)

    def _cache(self) -> tuple[Tensor, Tensor]:
        """Return keys and values [B, H, room, d] that repeat SAMPLE random tokens."""
        config = self.model.config
        shape = (self.batch, config.heads, self.room, config.dim // config.heads)
        keys, values = (torch.empty(shape, device=self.x_t.device) for _ in range(2))
        for held in (keys, values):
            sample = torch.randn_like(held[:, :, :SAMPLE])
            for part in held.split(SAMPLE, 2):
                part.copy_(sample[:, :, : part.shape[2]])
        return keys, values


class Stream:
    """A sequence that continues from a position."""

    def __init__(self, decoder: Decoder, position: int) -> None:
        self.model, self.x_t, self.state = decoder.model, decoder.x_t, decoder.at(position)
        self.state_bytes = self.state.nbytes

    @torch.inference_mode()
    def seconds(self, count: int) -> list[float]:
        """Decode `count` tokens, each the input of the next, and return the time of each."""
        times = []
        for _ in range(count):
            start = time.perf_counter()
            self.x_t, self.state = self.model.step(self.x_t, self.state)
            if self.x_t.is_cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        return times


def alternate(
    streams: Mapping[Name, Stream], *, tokens: int, burst: int
) -> dict[Name, list[float]]:
    """Return the seconds of at least `tokens` tokens of every stream, a `burst` of each in turn.

    The first token of a burst does not count: the caches of the processor then hold the data of
    another stream. The order changes every round, so that no stream always follows the same one.
    """
    found: dict[Name, list[float]] = {name: [] for name in streams}
    order, rng = list(streams), random.Random(0)
    while streams and min(map(len, found.values())) < tokens:
        rng.shuffle(order)
        for name in order:
            found[name] += streams[name].seconds(burst + 1)[1:]
    return found


def room_for(position: int, tokens: int, burst: int) -> int:
    """Return the length of a cache that also holds the tokens decoded at the last position."""
    return position + -(-tokens // burst) * (burst + 1)


def generate(name: str, *, position: int, tokens: int, **options: Any) -> Work:
    """Return work that fills a state and decodes some tokens, for a separate process."""
    decoder = _warm_decoder(name, room=position + tokens, **options)
    return lambda: Stream(decoder, position).seconds(tokens)


def prefill(name: str, *, length: int, chunk: int, **options: Any) -> Work:
    """Return work that reads a prompt in chunks, for a separate process."""
    decoder = _warm_decoder(name, room=length, **options)
    tokens = inputs((decoder.batch, length, options["dim"]), 1)[0].to(decoder.x_t.device)
    return lambda: read(decoder.model, tokens, chunk)


@torch.inference_mode()
def read(model: TransformerEncoder, tokens: Tensor, chunk: int) -> EncoderState:
    """Return the state after a prompt [B, L, D]."""
    state = None
    for part in tokens.split(chunk, 1):
        _, state = model(part, state=state, return_state=True)
    assert state is not None
    return state


@torch.inference_mode()
def _warm_decoder(name: str, **options: Any) -> Decoder:
    """Return a decoder after a first call, which starts thread pools and libraries."""
    peak.free_at_once()
    decoder = Decoder(name, **options)
    decoder.model(decoder.x_t[:1].unsqueeze(1).expand(-1, 2, -1))
    return decoder


def _growth(what: str, field: str, rows: Rows) -> float:
    """Return the largest growth of EA-6 from EARLY to LATE, over the batch sizes."""
    at = {"what": what, "mixer": OURS}
    found = []
    for batch in sorted({row["batch"] for row in rows if row["what"] == "latency"}):
        early, late = (find_row(rows, batch=batch, position=p, **at) for p in (EARLY, LATE))
        fixed = early["model_bytes"] if what == "memory" else 0
        found.append(float((fixed + late[field]) / (fixed + early[field])))
    if not found:
        raise LookupError("no token was timed")
    return max(found)


def gap(rows: Rows, position: int) -> float:
    """Return the time per token of SA over that of EA-6, at batch 8."""
    at = {"what": "latency", "batch": 8, "position": position}
    return ratio(at | {"mixer": "sa"}, at | {"mixer": OURS})(rows)


def _least_growth(rows: Rows) -> float:
    """Return the least factor by which the gap grows from one position to the next."""
    timed = (row for row in rows_of(rows, "latency") if row["batch"] == 8 and "p50" in row)
    gaps = [gap(rows, row["position"]) for row in timed if row["mixer"] == "sa"]
    if len(gaps) < 2:
        raise LookupError("fewer than two positions of SA at batch 8")
    return min(later / earlier for earlier, later in pairwise(gaps))


def _targets() -> Iterator[Target]:
    times = partial(Target, unit="×")
    for name, what, field, most in (
        ("time per token", "latency", "p50", 1.05),
        ("state bytes", "latency", "state_bytes", 1.0),
        ("memory", "memory", "peak_bytes", 1.02),
    ):
        value, quick = partial(_growth, what, field), what == "latency"
        yield times(f"EA-6: {name} at {LATE} / at {EARLY}", value, at_most=most, quick=quick)
    words = "faster per token than softmax attention with its cache, BERT-base at position 16,384"
    name, value = f"batch 8, position {LATE}: SA / EA-6", partial(gap, position=LATE)
    yield times(name, value, at_least=8.0, highlight=f"{words}, batch 8")
    yield times("batch 8: least growth of SA / EA-6", _least_growth, at_least=1.0)


TARGETS = tuple(_targets())


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield time per token, state and memory by position; time and memory of prompts."""
    for what, field, unit, title in (
        ("latency", "p50", 1e-3, "Time per token, ms"),
        ("latency", "state_bytes", MIB, "State or cache, MiB"),
        ("memory", "peak_bytes", MIB, "Memory above the weights, MiB"),
        ("prefill", "seconds", 1.0, "Reading a prompt in chunks of {chunk}, s"),
        ("prefill", "peak_bytes", MIB, "Memory of that above weights and prompt, MiB"),
    ):
        found = rows_of(rows, what)
        if any(field in row for row in found):
            axis = "L" if what == "prefill" else "position"
            yield grid(
                title.format(**found[0]),
                found,
                axis,
                partial(_cell, field, unit),
                name=lambda row: f"{row['mixer']}, batch {row['batch']}",
                notes=_notes(found, axis) if field in ("p50", "seconds") else (),
            )


def _cell(field: str, unit: float, row: Row) -> str:
    return number(row[field] / unit) if field in row else "—"


def _notes(rows: Rows, axis: str) -> Iterator[str]:
    """Yield the time of a whole sequence of tokens, and what could not be measured."""
    for batch in sorted({row["batch"] for row in rows}) if axis == "position" else ():
        timed = group((r for r in rows if r["batch"] == batch and "p50" in r), "mixer")
        curves = {
            mixer: sorted((row["position"], row["p50"]) for row in own)
            for mixer, own in timed.items()
        }
        if curves and min(map(len, curves.values())) > 1:
            end = min(curve[-1][0] for curve in curves.values())
            spent = (f"{mixer} {_clock(total(curve, end))}" for mixer, curve in curves.items())
            yield (
                f"Batch {batch}: generating {end:,} tokens one by one takes {', '.join(spent)},"
                " integrated over the positions."
            )
    for row in rows:
        if "reason" in row:
            place = f"batch {row['batch']}, {axis} {row[axis]}"
            yield f"{row['mixer']}, {place}: {row['reason']}."


def total(curve: Sequence[tuple[int, float]], end: int) -> float:
    """Return the seconds of all tokens up to `end`, with straight lines between the positions."""
    seconds = curve[0][0] * curve[0][1]
    for (x, y), (a, b) in pairwise(curve):
        if a <= end:
            seconds += (a - x) * (y + b) / 2
    return seconds


def _clock(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def draw(rows: Sequence[Row]) -> Chart | None:
    """Draw memory and time per token for each batch size, and time and memory of prompts."""
    batches = sorted({row["batch"] for row in rows_of(rows, "latency")})
    columns = 6 // max(2, len(batches))
    panels: list[Panel] = []
    for what, title, y in (
        ("memory", "(a) Memory", "GiB"),
        ("latency", "(b) Time per token", "ms"),
    ):
        for batch in batches:
            found = [row for row in rows_of(rows, what) if row["batch"] == batch]
            times = mixer_points(found, "position", "p50", unit=1e-3)
            points = _totals(found) if what == "memory" else times
            name = f"{title}, batch {batch}"
            if points:
                panels.append(lines(name, points, x="position", y=y, log="xy", columns=columns))
    read = rows_of(rows, "prefill")
    for field, unit, title, y in (
        ("seconds", 1.0, "(c) Reading a prompt in chunks", "s"),
        ("peak_bytes", GIB, "(d) Memory above weights and prompt", "GiB"),
    ):
        points = mixer_points(read, "L", field, unit=unit)
        if points:
            panels.append(lines(title, points, x="L, tokens", y=y, log="xy"))
    return Chart(panels) if panels else None


def _totals(rows: Rows) -> list[Row]:
    """Return the points of the weights and everything above them, in GiB."""
    total = [r | {"total": r["model_bytes"] + r["peak_bytes"]} for r in rows if "peak_bytes" in r]
    return mixer_points(total, "position", "total", unit=GIB)


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the points at which SA costs less than EA-6."""
    for what, field, axis, words in (
        ("latency", "p50", "position", "takes less time per token"),
        ("memory", "peak_bytes", "position", "needs less memory"),
        ("prefill", "seconds", "L", "reads a prompt faster"),
    ):
        yield from better_mixers(rows_of(rows, what), field, words, "batch", axis)
