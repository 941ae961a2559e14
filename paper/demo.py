"""Demo: train, time and report next to softmax attention, in five minutes on two cores."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from eattn.ops import State, backends, ea, ea_series, ea_series_step
from paper.harness import experiment, page
from paper.harness.measure import inputs
from paper.harness.table import Table

Stage = tuple[str, str, Mapping[str, str]]  # experiment, heading, changes of its quick plan
STAGES: Sequence[Stage] = (
    (
        "table3",
        "train EA-2, EA-6 and softmax attention on JapaneseVowels",
        {"sets": "JapaneseVowels", "protocols": "tslib,clean", "seeds": "2", "epochs": "0.5"},
    ),
    ("op", "time the operator, softmax attention and the paper's code", {}),
    (
        "block",
        "time a training step of one BERT-base block",
        {"mixers": "q+k+v,ea-2,ea-6,sa", "lengths": "512,2048", "budget": "8"},
    ),
    (
        "fig5",
        "generate token by token with BERT-base",
        {"mixers": "ea-6,sa", "batches": "1", "positions": "256,2048,16384", "prompts": "1024"},
    ),
    ("fig1", "draw the computation (Figure 1)", {}),
    ("fig3", "draw the Taylor polynomials (Figure 3)", {}),
)
NEXT = (
    ("eattn classify fit TRAIN.ts --out model/", "train a classifier on your own series"),
    ("eattn forecast fit data.csv --horizon 12 --out model/", "train a forecaster"),
    ("python -m paper run table3", "all four datasets of the paper, five seeds"),
    ("python -m paper report", "this report from the published rows"),
)


def run(
    console: Console, out: Path, *, fresh: bool = False, stages: Sequence[Stage] = STAGES
) -> Path:
    """Run the quick plans of some experiments and return the report page.

    Rows that an earlier call has measured are kept, unless `fresh`.
    """
    console.print("About five minutes on two cores. After Ctrl-C the same command continues.")
    reason = backends()["native"]
    if reason is not None:
        console.print(f"The CPU kernels do not run here: {reason}", style="yellow")
    total = len(stages) + 1
    _heading(console, 1, total, "compare the forms of the operator")
    console.print(forms().rich())
    for number, (name, heading, changes) in enumerate(stages, 2):
        _heading(console, number, total, heading)
        found = experiment.run(name, console, quick=True, out=out, fresh=fresh, changes=changes)
        experiment.show(found, console)
    path = page.write(out, out, title="Element-wise attention, a demo")
    console.print(f"\nOpen the report in a browser: {path.resolve().as_uri()}\n", soft_wrap=True)
    width = max(len(command) for command, _ in NEXT)
    for command, what in NEXT:
        console.print(f"  {command:<{width}}  {what}", highlight=False, soft_wrap=True)
    return path


def forms() -> Table:
    """Compare every way to compute causal EA-6 with the parallel one, and a high order with EA."""
    q, k, v = inputs((2, 512, 64))
    parallel = ea_series(q, k, v, order=6, causal=True)
    small_q, small_k = q / 4, k / 4  # the Taylor polynomial of order 16 has converged here
    exact = ea(small_q, small_k, v, causal=True)
    pairs = {
        "in chunks, carrying the state": (chunked(q, k, v), parallel),
        "token by token, a recurrence": (stepped(q, k, v), parallel),
        "order 16 against exact EA": (ea_series(small_q, small_k, v, order=16, causal=True), exact),
    }
    lines = [[name, f"{float((a - b).abs().max()):.1e}"] for name, (a, b) in pairs.items()]
    return Table("One operator, many forms (EA-6, causal)", ["form", "largest difference"], lines)


def chunked(q: Tensor, k: Tensor, v: Tensor, *, size: int = 100) -> Tensor:
    """Compute the causal series in chunks; each continues from the state of the one before."""
    state, pieces = None, []
    for piece in zip(q.split(size, 1), k.split(size, 1), v.split(size, 1), strict=True):
        y, state = ea_series(*piece, order=6, causal=True, state=state, return_state=True)
        pieces.append(y)
    return torch.cat(pieces, dim=1)


def stepped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute the causal series as a recurrence, one token at a time."""
    state = State.zeros(q.shape[0], q.shape[2], order=6)
    tokens = []
    for q_t, k_t, v_t in zip(q.unbind(1), k.unbind(1), v.unbind(1), strict=True):
        y, state = ea_series_step(q_t, k_t, v_t, state)
        tokens.append(y)
    return torch.stack(tokens, dim=1)


def _heading(console: Console, number: int, total: int, words: str) -> None:
    console.print(f"\n[bold]{number}/{total}  {words}[/]", highlight=False)
