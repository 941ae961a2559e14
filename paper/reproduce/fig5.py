"""`eattn reproduce fig5`: what it costs to generate with BERT-base (Figure 5), with EA and with SA.

Token by token and causal: EA through its state, SA with a KV cache whose memory is there before.
(a) Memory above the weights, every point in a process of its own; (b) time per token, all mixers
and positions of a batch size interleaved; and the prompt before, read in chunks. States and caches
are filled to a position directly (see bench/decoding.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from pathlib import Path

from rich.console import Console

from eattn.nn import check_mixer
from paper.bench import bert, decoding, peak
from paper.bench.decoding import Decoder, Stream
from paper.bench.experiment import carry_out, once
from paper.bench.measure import Row, quantiles
from paper.bench.progress import Tick
from paper.bench.runlog import Journal
from paper.bench.target import Rows
from paper.report import fig5 as report
from paper.report import plots
from paper.reproduce import costs
from paper.reproduce.fig5_promises import PROMISES

MIXERS = ("ea-2", "ea-6", "sa")
LONGEST = {"sa": 16384, "sa-math": 16384}  # where a cache stops
# Seconds on two cores, roughly: to start a process, of a token, of a byte to read, of a prompt's
# token and of a pair of them.
START, TOKEN, BYTE, READ, PAIR = 5.0, 0.025, 5e-11, 1e-3, 2e-7
FEW = 8  # tokens decoded where only memory counts
SPARE = 0.8  # of the memory that is free, how much all that is timed together may take


@dataclass(frozen=True)
class Plan:
    """What to measure. A smaller `dim` or `depth` is for tests: only 768 and 12 are BERT-base."""

    mixers: tuple[str, ...] = MIXERS
    batches: tuple[int, ...] = (1, 4, 8)
    positions: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
    prompts: tuple[int, ...] = (1024, 4096, 16384)
    chunk: int = 1024  # tokens of a prompt that are read at once
    tokens: int = 96  # timed at every position, at least,
    burst: int = 8  # so many in a row
    dim: int = bert.DIM
    depth: int = bert.DEPTH
    device: str = "cpu"
    limit: float = 600.0  # seconds after which a point is given up

    def __post_init__(self) -> None:
        for name in self.mixers:
            if check_mixer(name) is None and name not in ("sa", "sa-math"):
                raise ValueError(f"mixers must be ea-N, sa or sa-math, got {name!r}")

    @classmethod
    def quick(cls) -> "Plan":
        """Fewer points; those of the promises are among them."""
        return cls(batches=(1, 8), positions=(256, 2048, 16384), prompts=(1024, 4096), limit=120.0)

    def here(self) -> "Plan":
        """On this machine's card, if it has one."""
        return replace(self, device=bert.default_device())

    def points(self, batch: int) -> Iterator[tuple[str, int, int]]:
        """Mixer, batch and position."""
        for position in self.positions:
            for name in self.mixers:
                if LONGEST.get(name, inf) >= position:
                    yield name, batch, position

    def cache_bytes(self, name: str, batch: int, position: int) -> int:
        """What a token has to read beside the weights, roughly."""
        tokens = position if check_mixer(name) is None else 0
        return 2 * bert.FLOAT * batch * tokens * self.dim * self.depth

    def costs(self) -> Iterator[tuple[Row, float]]:
        """Every row to be measured, and about how many seconds it takes."""
        for batch in self.batches:
            for point in self.points(batch):
                yield _memory(*point), self.filling(*point)
            yield {"what": "latency", "batch": batch}, self.timing(batch)
        for length in self.prompts:
            for name in self.mixers:
                yield _prefill(name, length), self.reading(name, length)

    def filling(self, name: str, batch: int, position: int) -> float:
        return START + 40 * BYTE * self.cache_bytes(name, batch, position)

    def timing(self, batch: int) -> float:
        caches = [self.cache_bytes(*point) for point in self.points(batch)]
        tokens = self.tokens * (1 + 1 / self.burst)
        return START + tokens * (TOKEN * len(caches) + BYTE * sum(caches))

    def reading(self, name: str, length: int) -> float:
        pairs = PAIR * length**2 if check_mixer(name) is None else 0.0
        return START + READ * length + pairs


def _memory(name: str, batch: int, position: int) -> Row:
    return {"what": "memory", "mixer": name, "batch": batch, "position": position}


def _prefill(name: str, length: int) -> Row:
    return {"what": "prefill", "mixer": name, "batch": 1, "L": length}


# ---- rows ----------------------------------------------------------------------------------------


def run(plan: Plan, console: Console, out: Path, *, name: str = "fig5") -> list[Path]:
    """Rows to out/name.jsonl as they come, a picture of them, and tables on the console."""
    plots.need_matplotlib()
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.jsonl"
    rows = carry_out(
        path,
        "fig5",
        asdict(plan),
        console,
        costs=plan.costs(),
        measure=partial(measure, plan),
        promises=PROMISES,
    )
    print_rows(plan, rows, console)
    return [path, *report.redraw(path)]


def measure(plan: Plan, journal: Journal, tick: Tick) -> None:
    """Memory of a batch size, then its times, as far as the memory lasts; prompts at the end."""
    rows = partial(once, journal, tick)
    for batch in plan.batches:
        for point in plan.points(batch):
            label = f"memory of {point[0]}, batch {batch}, at {point[2]}"
            rows(_memory(*point), label, plan.filling(*point), partial(memory, plan, *point))
        of = [r for r in journal.rows if r["what"] == "memory" and r["batch"] == batch]
        key, label = {"what": "latency", "batch": batch}, f"time per token, batch {batch}"
        rows(key, label, plan.timing(batch), partial(latency, plan, batch, of))
    for length in plan.prompts:
        for name in plan.mixers:
            label = f"prompt of {length} with {name}"
            work = partial(prompt, plan, name, length)
            rows(_prefill(name, length), label, plan.reading(name, length), work)


def memory(plan: Plan, name: str, batch: int, position: int) -> Iterator[Row]:
    """What it takes above the weights to hold a position and decode there, or why it cannot."""
    options = {"batch": batch, "position": position, "tokens": FEW}
    row = peak.trial(
        "paper.bench.decoding:generate", limit=plan.limit, **_options(plan, name, options)
    )
    row.pop("seconds", None)  # most of it went into filling
    yield row | _conditions(plan, name)


def prompt(plan: Plan, name: str, length: int) -> Iterator[Row]:
    """Time and memory of reading a prompt in chunks, once, in a process of its own."""
    options = {"batch": 1, "length": length, "chunk": plan.chunk}
    row = peak.trial(
        "paper.bench.decoding:prefill", limit=plan.limit, **_options(plan, name, options)
    )
    if "seconds" in row:
        row["tokens_per_second"] = length / row["seconds"]
    yield row | {"chunk": plan.chunk} | _conditions(plan, name)


def latency(plan: Plan, batch: int, of: Rows) -> Iterator[Row]:
    """Time per token of every mixer at every position, interleaved; the reason where there is none.

    All positions of a mixer share its weights and the memory of its cache.
    """
    points = [(row["mixer"], row["position"]) for row in of]
    reasons = dict(_reasons(plan, of))
    alive = [point for point in points if point not in reasons]
    decoders = {}
    for name in dict.fromkeys(name for name, _ in alive):
        positions = [position for mixer, position in alive if mixer == name]
        room = decoding.room_for(positions, plan.tokens, plan.burst)
        size = {"batch": batch, "room": room, "dim": plan.dim, "depth": plan.depth}
        decoders[name] = Decoder(name, device=plan.device, **size)
    streams = {(name, position): Stream(decoders[name], position) for name, position in alive}
    found = decoding.alternate(streams, tokens=plan.tokens, burst=plan.burst)
    for name, position in points:
        row = {"mixer": name, "position": position} | _conditions(plan, name)
        if (name, position) in reasons:
            yield row | {"reason": reasons[name, position]}
            continue
        times = quantiles(found[name, position])
        row |= {"state_bytes": streams[name, position].state_bytes} | vars(times)
        yield row | {"tokens_per_second": batch / times.p50}


def _reasons(plan: Plan, of: Rows) -> Iterator[tuple[tuple[str, int], str]]:
    """Why points cannot be timed: they died alone, or are too large beside all the weights."""
    free = (peak.available_bytes() or inf) if plan.device == "cpu" else inf
    weights = sum({row["mixer"]: row["model_bytes"] for row in of}.values())
    for row in of:
        point = row["mixer"], row["position"]
        if "reason" in row:
            yield point, row["reason"]
        elif weights + row["peak_bytes"] > SPARE * free:
            needed = weights + row["peak_bytes"]
            yield point, f"takes {report.size(needed)} of {report.size(free)} that are free"


def _options(plan: Plan, name: str, options: Row) -> Row:
    """All that a process of its own is told."""
    return {"name": name, "dim": plan.dim, "depth": plan.depth, "device": plan.device} | options


def _conditions(plan: Plan, name: str) -> Row:
    weights = bert.weight_bytes(name, dim=plan.dim, depth=plan.depth)
    return costs.conditions(plan, weights)


def print_rows(plan: Plan, rows: Sequence[Row], console: Console) -> None:
    """The promises, memory, time per token, prompts, and where it was measured."""
    costs.print_rows(plan, rows, console, report)
