"""The rows of `eattn bench ranks` as tables of docs/scaling.md: what was measured, and on paper.

A step of one layer takes compute / W, and on top of it what is exchanged. Ring attention is the
same block with causal softmax attention whose keys and values go round all ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paper.report import plots
from paper.report.promises import promise_table, source
from paper.report.runs import Row
from paper.report.tables import table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TERMS = 7  # of EA-6
TOKENS = {"1 M": 2**20, "1 G": 2**30}
CARDS = (8, 64, 256, 1024)


@dataclass(frozen=True)
class Machine:
    """What a rank computes in a second, and what a message costs it."""

    flops: float  # per second
    latency: float  # seconds of a hop
    bandwidth: float  # bytes per second, each way
    number: int  # bytes of a number of keys and values


# NVIDIA's data sheet of an H100 SXM: 989 TFLOP/s in bfloat16 without sparsity; 400 Gbit/s is one
# NDR InfiniBand port for each card. 40 % of the peak and 10 µs for a hop are assumptions.
PAPER = Machine(flops=0.4 * 989e12, latency=10e-6, bandwidth=50e9, number=2)
PAPER_DIM = 4096


def block_flops(L: int, D: int) -> float:
    """Forward and backward of a block's matrices: 12 D^2 weights, 2 FLOP each, three times."""
    return 72.0 * D * D * L


def softmax_flops(L: int, D: int) -> float:
    """Causal softmax attention, forward (two products) and backward (five): 7 L^2 D."""
    return 7.0 * L * L * D


def exchange(machine: Machine, W: int, sent: float) -> float:
    """Seconds of an all-gather of `sent` bytes from each of W ranks, in a ring."""
    return (W - 1) * (machine.latency + sent / machine.bandwidth)


def ea_exchange(machine: Machine, W: int, D: int) -> float:
    """States forward, and their gradients backward."""
    return 2 * exchange(machine, W, 4.0 * (D * (2 * TERMS + 1) + 2))


def ring_exchange(machine: Machine, W: int, L: int, D: int) -> float:
    """Keys and values forward; both, and their gradients, backward."""
    return 3 * exchange(machine, W, 2.0 * machine.number * D * L / W)


def draw(rows: Sequence[Row]) -> "Figure":
    """Two panels: what a message takes, beside its model, and what a training step does."""
    message = next(row for row in rows if row["what"] == "message")
    gathers = [row for row in rows if row["what"] == "gather"]
    sizes = [row["bytes"] for row in gathers]
    model = [message["latency"] + size / message["bandwidth"] for size in sizes]
    figure = plots.new_figure(4.2)
    left, right = figure.subplots(1, 2)
    left.loglog(sizes, [1000 * row["p50"] for row in gathers], "o", color=plots.BLUE)
    left.loglog(sizes, [1000 * seconds for seconds in model], color=plots.GREY)
    left.set(xlabel="bytes from each process", ylabel="milliseconds")
    left.set_title("(a) A message: measured, and its model")
    steps = [row for row in rows if row["what"] == "step"]
    names = ["1 process" if row["ranks"] == 1 else f"{row['ranks']} processes" for row in steps]
    right.bar(names, [row["p50"] for row in steps], color=plots.BLUE, width=0.5)
    right.set(ylabel="seconds", ylim=(0, None))
    right.set_title(f"(b) A training step, {steps[0]['shape'][1]:,} tokens")
    return figure


def markdown(rows: Sequence[Row]) -> str:
    """The promise, what the model says of the run beside what was measured, and the paper."""
    return "\n".join([promise_table(rows), "", measured(rows), "", source(rows[-1])])


def measured(rows: Sequence[Row]) -> str:
    """The model, fitted to one process and to messages, beside the time of several."""
    alone = next(row for row in rows if row["what"] == "step" and row["ranks"] == 1)
    shared = next(row for row in rows if row["what"] == "step" and row["ranks"] > 1)
    message = next(row for row in rows if row["what"] == "message")
    _, L, D = alone["shape"]
    W = shared["ranks"]
    here = Machine(
        block_flops(L, D) / alone["p50"], message["latency"], message["bandwidth"], number=4
    )
    weights = 4 * 12 * D * D  # bytes of gradients that are summed: a ring sends them twice
    gradients = 2 * (W - 1) * (here.latency + weights / W / here.bandwidth)
    states = ea_exchange(here, W, D)
    said = alone["p50"] / W + states + gradients
    ring = ring_exchange(here, W, L, D)
    head = ["", "value"]
    body = [
        ["one process, a training step", f"{alone['p50']:.3f} s"],
        ["that is, of the block's matrices alone", f"{here.flops / 1e9:.1f} GFLOP/s"],
        [
            "a message: latency, bandwidth",
            f"{_time(here.latency)}, {here.bandwidth / 1e9:.2f} GB/s",
        ],
        ["the fit of these is off by at most", f"{message['worst']:.0%}"],
        [f"model: states exchanged by {W} processes", _time(states)],
        [f"model: keys and values, had it been ring attention, L = {L:,}", _time(ring)],
        ["model: gradients of the weights summed", _time(gradients)],
        [f"model: {W} processes, a training step", f"{said:.3f} s"],
        [f"measured: {W} processes, a training step", f"{shared['p50']:.3f} s"],
        ["measured / model", f"{shared['p50'] / said:.2f}"],
    ]
    return table(head, body)


def paper() -> str:
    """Seconds of a layer's training step, compute and exchange, that the model gives for cards."""
    head = ["tokens", "cards", "EA-6: compute", "exchange", "ring attention: compute", "exchange"]
    body = []
    for name, L in TOKENS.items():
        for W in CARDS:
            D, m = PAPER_DIM, PAPER
            linear = block_flops(L, D) / m.flops / W
            both = linear + softmax_flops(L, D) / m.flops / W
            cells = (linear, ea_exchange(m, W, D), both, ring_exchange(m, W, L, D))
            body.append([name, str(W), *map(_time, cells)])
    return table(head, body)


def _time(seconds: float) -> str:
    for unit, size, most in (("µs", 1e-6, 1e-3), ("ms", 1e-3, 1.0), ("s", 1.0, 3600.0)):
        if seconds < most:
            return f"{_figures(seconds / size)} {unit}"
    return f"{_figures(seconds / 3600)} h"


def _figures(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
