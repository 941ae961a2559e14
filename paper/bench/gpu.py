"""`eattn bench gpu`: the Triton kernels on a card, beside plain PyTorch and the card's bandwidth.

The numbers are checked first. The limit is `torch.addcmul`, three reads and a write; each row of
ours says how many bytes its kernels move, so that time is judged against that bandwidth.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from eattn.ops import State, Taylor, backends, ea_series, ea_series_step, reference
from eattn.ops.triton import DEVICE
from paper.bench import show
from paper.bench.candidates import Shape, Work, inputs, value_and_gradients
from paper.bench.measure import Contender, Row, interleave
from paper.bench.runlog import Journal

Works = dict[tuple[str, str], tuple[Work, int | None]]  # what and who: work, bytes it moves
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CHECKED: tuple[Shape, ...] = ((1, 700, 37), (1024, 70, 3))  # cut in time; in one pass


@dataclass(frozen=True)
class Plan:
    # One long series and one long document, cut in time; many sequences, in one pass.
    shapes: tuple[Shape, ...] = ((1, 131072, 64), (1, 16384, 768), (32, 4096, 1024))
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    order: int = 6
    rounds: int = 20
    calls: int = 20  # in every timed run: launches overlap, as they do in a model
    step: tuple[int, int] = (16, 768)  # batch and channels of one token


def run(plan: Plan, console: Console, json: Path | None = None) -> list[Row]:
    """Check, measure, print; rows go to the file as they come."""
    reason = backends()["triton"]
    if reason is not None:
        raise ValueError(f"there is nothing to measure: {reason}")
    journal = Journal(json, "gpu")
    journal.origin["hardware"] = torch.cuda.get_device_name()
    for row in measure(plan):
        journal.add(row)
        console.print(line(row), highlight=False, soft_wrap=True)
    console.print(show.source(journal.rows[-1]), highlight=False, soft_wrap=True)
    return journal.rows


def measure(plan: Plan) -> Iterator[Row]:
    """All rows of the plan, correctness first."""
    yield check(plan)
    for name in plan.dtypes:
        for shape in plan.shapes:
            yield from shape_rows(plan, shape, name)
    yield from step_rows(plan)


def check(plan: Plan) -> Row:
    """Value and gradients of every way to cut, and steps; raises when they disagree with float64.

    Errors are in units of what rounding may do.
    """
    worst = max(_error(plan, shape, dtype) for shape in CHECKED for dtype in DTYPES.values())
    worst = max(worst, _step_error(plan))
    if not worst < 1:
        raise RuntimeError(f"the kernels are wrong here ({worst:.1e}), so nothing was timed")
    return {"what": "correctness", "who": "triton", "shapes": CHECKED, "error": worst}


def _error(plan: Plan, shape: Shape, dtype: torch.dtype) -> float:
    """Beside the quadratic form in float64, of the inputs as they are in this dtype."""
    found = []
    for causal in (True, False):
        options: dict[str, Any] = dict(expansion=Taylor(plan.order), causal=causal)
        given = [x.detach() for x in _on_card(shape, dtype, 4)]
        got = value_and_gradients(_ours, *given, **options)
        want = value_and_gradients(reference.ea_expanded, *(x.double() for x in given), **options)
        found += [_relative(a, b) for a, b in zip(want, got, strict=True)]
    return max(found) / _allowed(plan, dtype)


def _step_error(plan: Plan) -> float:
    """The same of one token after another."""
    q, k, v = _on_card((3, 9, 37), torch.float32, 3)
    state = State.zeros(3, 37, order=plan.order, device=DEVICE)
    ys = []
    for t in range(9):
        y, state = ea_series_step(q[:, t], k[:, t], v[:, t], state)
        ys.append(y)
    wide = (x.double() for x in (q, k, v))
    want = reference.ea_expanded(*wide, expansion=Taylor(plan.order), causal=True)
    return _relative(want, torch.stack(ys, 1)) / _allowed(plan, torch.float32)


def _relative(want: Tensor, got: Tensor) -> float:
    return float((want - got).abs().max() / want.abs().max())


def _allowed(plan: Plan, dtype: torch.dtype) -> float:
    """What rounding may do: in the sums, and in what comes out of them."""
    sums = 20 * reference.condition(Taylor(plan.order)) * torch.finfo(torch.float32).eps
    return max(sums, 2 * torch.finfo(dtype).eps)


def shape_rows(plan: Plan, shape: Shape, name: str) -> Iterator[Row]:
    """Forward, and forward and backward, of one shape."""
    dtype = DTYPES[name]
    q, k, v, gy = _on_card(shape, dtype, 4)
    causal: dict[str, Any] = dict(expansion=Taylor(plan.order), causal=True)

    def forward(backend: str) -> Work:
        return torch.no_grad()(lambda: ea_series(q, k, v, backend=backend, **causal))

    def training(backend: str) -> Work:
        a, b, c = (x.detach() for x in (q, k, v))
        return lambda: value_and_gradients(ea_series, a, b, c, gy, backend=backend, **causal)

    works: Works = {
        ("forward", "limit"): (lambda: torch.addcmul(q, k, v), 4 * prod(shape) * q.itemsize),
        ("forward", "triton"): (forward("triton"), None),
        ("forward", "eager"): (forward("eager"), None),
        ("forward+backward", "triton"): (training("triton"), None),
        ("forward+backward", "eager"): (training("eager"), None),
    }
    yield from _timed(plan, works, {"shape": shape, "dtype": name, "order": plan.order})


def step_rows(plan: Plan) -> Iterator[Row]:
    """One token, as it is called and replayed from a CUDA graph."""
    B, D = plan.step
    q, k, v = (x[:, 0] for x in _on_card((B, 1, D), torch.float32, 3))
    state = State.zeros(B, D, order=plan.order, device=DEVICE)

    @torch.inference_mode()
    def step() -> Tensor:
        return ea_series_step(q, k, v, state)[0]

    step()  # compiled before it is captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    works: Works = {("step", "triton"): (step, None), ("step", "graph"): (graph.replay, None)}
    yield from _timed(plan, works, {"shape": (B, 1, D), "dtype": "float32", "order": plan.order})


def _timed(plan: Plan, works: Works, fields: Row) -> Iterator[Row]:
    contenders = {
        " ".join(key): Contender(_repeated(work, plan.calls), calls=plan.calls, warmup=2)
        for key, (work, _) in works.items()
    }
    times = interleave(contenders, rounds=plan.rounds)
    for (what, who), (_, moved) in works.items():
        yield {"what": what, "who": who, "bytes": moved} | fields | vars(times[f"{what} {who}"])


def _repeated(work: Work, calls: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(calls):
            work()
        torch.cuda.synchronize()

    return run


def _ours(*args: Tensor, **options: Any) -> Tensor:
    return ea_series(*args, backend="triton", **options)


def _on_card(shape: Shape, dtype: torch.dtype, count: int) -> list[Tensor]:
    return [x.to(DEVICE, dtype) for x in inputs(shape, count)]


def line(row: Row) -> str:
    """A row as one line of text."""
    if row["what"] == "correctness":
        return f"value and gradients are right, to {row['error']:.0%} of what rounding may do"
    shape = "×".join(map(str, row["shape"]))
    text = f"{row['what']:<17} {row['who']:<7} {shape:<14} {row['dtype']:<9}"
    text += f" {show.seconds(row['p50']):>9}"
    if row["bytes"] is not None:
        text += f"  {row['bytes'] / row['p50'] / 1e9:8.1f} GB/s"
    return text
