"""Speed of the GPU kernels.

The Triton kernels of causal EA-6 are timed against plain PyTorch (`eager`) and against the
streaming limit of the GPU (`torch.addcmul`, three reads and one write). Numbers are checked first.
One long series and one long document are split along time; many sequences are computed in one pass.
A single token is timed as a call and as a CUDA graph.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from eattn.ops import State, Taylor, backends, ea_series, ea_series_step, reference
from eattn.ops.triton import DEVICE
from paper.harness.measure import (
    Candidate,
    Shape,
    Work,
    inputs,
    relative_error,
    timed_rows,
    value_and_gradients,
)
from paper.harness.runlog import Key, Row, RunLog, find_row
from paper.harness.table import Table, seconds

TITLE = "Speed of the GPU kernels"
EA = Taylor(6)
CHECKED: tuple[Shape, ...] = ((1, 700, 37), (1024, 70, 3))  # split along time; in one pass


@dataclass(frozen=True)
class Plan:
    """Shapes and dtypes to time."""

    shapes: tuple[Shape, ...] = ((1, 131072, 64), (1, 16384, 768), (32, 4096, 1024))
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    step: Shape = (16, 1, 768)  # one token
    rounds: int = 20
    calls: int = 20  # in every timed run: launches overlap, as they do in a model


def plan(quick: bool) -> Plan:
    """Return the full plan, or one shape in float32 with fewer rounds."""
    return Plan(shapes=((1, 16384, 768),), dtypes=("float32",), rounds=5) if quick else Plan()


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Check the kernels, then time each shape."""
    reason = backends()["triton"]
    if reason is not None:
        raise ValueError(f"the GPU kernels cannot run: {reason}")
    gpu = {"gpu": torch.cuda.get_device_name()}
    work: list[tuple[Key, Callable[[], Iterator[Row]]]] = [
        (gpu | {"shape": shape, "dtype": dtype}, partial(shape_rows, plan, shape, dtype))
        for dtype, shape in product(plan.dtypes, plan.shapes)
    ]
    work.append((gpu | {"what": "step", "shape": plan.step}, partial(step_rows, plan)))
    return log.measure_all(work, (gpu | {"what": "correctness"}, check))


def check() -> Row:
    """Compare values, gradients and steps with float64; raise if rounding cannot explain errors."""
    errors = []
    for shape, dtype, causal in product(CHECKED, (torch.float32, torch.bfloat16), (True, False)):
        given = [x.to(DEVICE, dtype) for x in inputs(shape, 4)]
        wide = [x.double() for x in given]
        options: dict[str, Any] = {"expansion": EA, "causal": causal}
        got = value_and_gradients(partial(ea_series, backend="triton"), *given, **options)
        want = value_and_gradients(reference.ea_expanded, *wide, **options)
        errors += [_relative(*pair, dtype) for pair in zip(want, got, strict=True)]
    q, k, v = (x.to(DEVICE) for x in inputs((3, 9, 37)))
    state, ys = State.zeros(3, 37, expansion=EA, device=DEVICE), []
    for token in zip(q.unbind(1), k.unbind(1), v.unbind(1), strict=True):
        y, state = ea_series_step(*token, state)
        ys.append(y)
    exact = reference.ea_expanded(q.double(), k.double(), v.double(), expansion=EA, causal=True)
    worst = max(*errors, _relative(exact, torch.stack(ys, 1), torch.float32))
    if not worst < 1:
        raise RuntimeError(f"errors are {worst:.1e} times what rounding explains: nothing is timed")
    return {"who": "triton", "shapes": CHECKED, "error": worst}


def _relative(want: Tensor, got: Tensor, dtype: torch.dtype) -> float:
    """Return the largest error, in units of what rounding explains."""
    sums = 20 * reference.condition(EA) * torch.finfo(torch.float32).eps
    return relative_error(got, want) / max(sums, 2 * torch.finfo(dtype).eps)


def shape_rows(plan: Plan, shape: Shape, dtype: str) -> Iterator[Row]:
    """Time forward, and forward with backward, of one shape."""
    q, k, v, gy = (x.to(DEVICE, getattr(torch, dtype)) for x in inputs(shape, 4))
    works: dict[tuple[str, str], Work] = {("forward", "limit"): partial(torch.addcmul, q, k, v)}
    for who in ("triton", "eager"):
        op = partial(ea_series, expansion=EA, causal=True, backend=who)
        works["forward", who] = torch.no_grad()(partial(op, q, k, v))
        a, b, c = (x.clone() for x in (q, k, v))  # these record gradients
        works["forward+backward", who] = partial(value_and_gradients, op, a, b, c, gy)
    yield from _timed(plan, works)


def step_rows(plan: Plan) -> Iterator[Row]:
    """Time one token as a call, and replayed from a CUDA graph."""
    B, _, D = plan.step
    q, k, v = (x[:, 0].to(DEVICE) for x in inputs(plan.step))
    state = State.zeros(B, D, expansion=EA, device=DEVICE)
    step = torch.inference_mode()(partial(ea_series_step, q, k, v, state))
    step()  # compiles before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    yield from _timed(plan, {("step", "triton"): step, ("step", "graph"): graph.replay})


def _timed(plan: Plan, works: dict[tuple[str, str], Work]) -> Iterator[Row]:
    def repeat(work: Work) -> None:
        for _ in range(plan.calls):
            work()
        torch.cuda.synchronize()

    candidates: list[tuple[Row, Candidate]] = []
    for (what, who), work in works.items():
        candidate = Candidate(partial(repeat, work), calls=plan.calls, warmup=2)
        candidates.append(({"what": what, "who": who}, candidate))
    return timed_rows(candidates, rounds=plan.rounds)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield all times, also as multiples of the streaming limit."""
    body = []
    for row in rows:
        if row["what"] == "correctness":
            continue
        same = {name: row.get(name) for name in ("gpu", "shape", "dtype")}
        limit = None if row["what"] == "step" else find_row(rows, who="limit", **same)
        times = "" if limit is None else f"{row['p50'] / limit['p50']:.2f}"
        name = f"{row['what']}, {row['who']}"
        cells = [row["gpu"], name, f"`{row['shape']}`", same["dtype"] or ""]
        body.append([*cells, seconds(row["p50"]), times])
    head = ["GPU", "causal EA-6", "shape", "dtype", "p50", "× streaming limit"]
    yield Table("Times", head, body)
