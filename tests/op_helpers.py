"""Inputs, oracle and tolerances for tests of the operator.

A `Case` holds the arguments of a call of `ea_series`. `oracle` computes its `Answer` in float64
with the quadratic reference (the recurrence, if there is decay) and plain autograd; `run` computes
it with a backend.
"""

import functools
import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from eattn import Quadrature, State, Taylor, backends, ea_series
from eattn.ops import Expansion, reference
from eattn.ops.backends import BY_NAME


def _marked(name: str):
    why = backends()["triton"] if name == "triton" else BY_NAME[name].why_not
    marks = [pytest.mark.skipif(why is not None, reason=f"{name}: {why}")]
    return pytest.param(name, marks=[*marks, pytest.mark.gpu] if name == "triton" else marks)


# Without "native", which is one of the ISAs that are tested by name.
EVERY_BACKEND = [_marked(name) for name in BY_NAME if name != "native"]
every_backend = pytest.mark.parametrize("backend", EVERY_BACKEND)
causals = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
EVERY_EXPANSION = [Taylor(0), Taylor(6), Taylor(12), Quadrature(9), Quadrature(25)]
EVERY_EXPANSION += [Quadrature(25, 12), Quadrature(65)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def pairwise(names: str, *axes: list[Any]) -> pytest.MarkDecorator:
    """Parametrise by the product of axes, with `full` on all but a few cases that cover every pair.

    Cases are shuffled: in order, the first ones would differ only in the last axis. Those with the
    most new pairs are chosen first.
    """
    cases = list(itertools.product(*axes))
    random.Random(0).shuffle(cases)
    pairs = [set(itertools.combinations(enumerate(map(_id, case)), 2)) for case in cases]
    seen, chosen = set(), set()
    for new in range(len(pairs[0]), 0, -1):
        for i, own in enumerate(pairs):
            if len(own - seen) >= new:
                seen |= own
                chosen.add(i)
    params = [
        pytest.param(
            *case,
            marks=[] if i in chosen else [pytest.mark.full],
            id="-".join(map(_id, case)),
        )
        for i, case in enumerate(cases)
    ]
    return pytest.mark.parametrize(names, params)


def _id(value: Any) -> str:
    if isinstance(value, bool):
        return "causal" if value else "full"
    return str(value).removeprefix("torch.")


@dataclass(frozen=True)
class Case:
    q: Tensor
    k: Tensor
    v: Tensor
    expansion: Expansion
    causal: bool
    key_mask: Tensor | None = None
    cu_seqlens: Tensor | None = None
    log_decay: Tensor | None = None
    state: State | None = None
    seed: int = 0
    # Whether the loss includes the final state, whose powers of k may dominate the gradients of y.
    through_state: bool = True

    def to(self, dtype: torch.dtype) -> "Case":
        """Round the inputs to dtype, and the state to the dtype of the sums."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        state = None if self.state is None else self.state.to(wide)
        decay = None if self.log_decay is None else self.log_decay.to(wide)
        q, k, v = (x.to(dtype) for x in (self.q, self.k, self.v))
        return replace(self, q=q, k=k, v=v, log_decay=decay, state=state)

    def gradients(self, y: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Return fixed cotangents of y, s and z, in float64."""
        rng = torch.Generator().manual_seed(self.seed + 1)
        gy, gs, gz = (
            torch.randn(x.shape, generator=rng, dtype=torch.float64, device="cpu").to(y.device)
            for x in (y, state.s, state.z)
        )
        return gy, gs, gz


def draw(*shape: int, seed: int, scale: float = 1.0, mean: float = 0.0) -> Tensor:
    """Draw normal numbers on the default device, that of the backend under test (conftest.py)."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=rng, dtype=torch.float64, device="cpu")
    return (x * scale + mean).to(torch.get_default_device())


def make(
    shape: tuple[int, int, int],
    *,
    expansion: Expansion,
    causal: bool,
    with_: str = "",
    keys: int | None = None,
    seed: int = 0,
    scale: float = 0.7,
) -> Case:
    """Make a random case.

    `with_` contains any of "mask", "packed", "state", and "decay" (constant) or "gate" (per token).
    """
    B, L, D = shape
    Lk = L if keys is None else keys
    q = draw(B, L, D, seed=seed, scale=scale)
    k, v = draw(B, Lk, D, seed=seed + 1, scale=scale), draw(B, Lk, D, seed=seed + 2, mean=0.5)
    case = Case(q, k, v, expansion, causal, seed=seed)
    rows = B
    if "packed" in with_:
        rng = torch.Generator().manual_seed(seed + 3)
        cuts = torch.randint(0, L + 1, (2,), generator=rng, device="cpu")
        cu = torch.tensor([0, *sorted(cuts.tolist()), L], dtype=torch.int32)
        case, rows = replace(case, cu_seqlens=cu), 3
    if "mask" in with_:
        rng = torch.Generator().manual_seed(seed + 4)
        mask = torch.rand(B, Lk, generator=rng, device="cpu") > 0.4
        case = replace(case, key_mask=mask.to(q.device))
    if "state" in with_:
        earlier = draw(2, rows, 4, D, seed=seed + 5, scale=scale).unbind()
        sums = reference.accumulate_expanded(*earlier, expansion=expansion)
        case = replace(case, state=State(*sums, expansion))
    if "decay" in with_:
        case = replace(case, log_decay=-draw(D, seed=seed + 6).exp() / 4)
    if "gate" in with_:
        gate = -draw(B, Lk, D, seed=seed + 6, scale=2.0, mean=-2.0).exp()
        case = replace(case, log_decay=gate.masked_fill(gate < -10, -torch.inf))
    return case


def padded(x: Tensor, mask: Tensor, fill: float) -> Tensor:
    """Place the first tokens of each row where the mask is True, and `fill` elsewhere."""
    out = torch.full_like(x, fill)
    out[mask] = torch.cat([row[:n] for row, n in zip(x, mask.sum(1).tolist(), strict=True)])
    return out


@dataclass(frozen=True)
class Answer:
    y: Tensor
    state: State
    grads: dict[str, Tensor]  # of q, k, v, and of log_decay, s, z if the case has them


def oracle(case: Case) -> Answer:
    """Compute the case in float64 with a reference, differentiated by autograd."""
    case = case.to(torch.float64)
    inputs = _leaves(case)
    q, k, v, log_decay, s, z = map(inputs.get, _LEAVES)
    offsets = None if case.cu_seqlens is None else case.cu_seqlens.tolist()
    if offsets is None:
        spans = [(slice(None), slice(None))]
    else:
        spans = [(slice(i, i + 1), slice(*of)) for i, of in enumerate(itertools.pairwise(offsets))]
    ys, states, totals = [], [], []
    for row, span in spans:
        tokens = q[:, span], k[:, span], v[:, span]
        options = dict(
            expansion=case.expansion,
            key_mask=None if case.key_mask is None else case.key_mask[:, span],
            state=None if case.state is None else (s[row], z[row], case.state.shift[row]),
        )
        if log_decay is None:
            ys.append(reference.ea_expanded(*tokens, causal=case.causal, **options))
            states.append(reference.accumulate_expanded(*tokens[1:], **options))
            continue
        each = log_decay.expand(k.shape)[:, span]
        early = tokens[1].shape[1] - tokens[0].shape[1]
        queries = torch.cat([tokens[1][:, :early], tokens[0].expand(len(k), -1, -1)], 1)
        y, state = reference.ea_decayed(queries, *tokens[1:], each, **options)
        mask = options["key_mask"]
        totals.append((each if mask is None else each * mask.unsqueeze(-1)).nansum(1))
        ys.append(y[:, early:])
        states.append(state)
    sums = (torch.cat(parts) for parts in zip(*states, strict=True))
    state = State(*sums, case.expansion, torch.cat(totals) if totals else None)
    return _answer(case, torch.cat(ys, 1), state, inputs)


def expected(shape: tuple[int, int, int], dtype: torch.dtype, **of: Any) -> tuple[Case, Answer]:
    """Return the case that `make` makes of these arguments, and its oracle."""
    return _expected(shape, dtype, str(torch.get_default_device()), **of)


# Consecutive tests share a case, and the oracle is slower than any backend.
@functools.lru_cache(maxsize=4)
def _expected(
    shape: tuple[int, int, int], dtype: torch.dtype, device: str, **of: Any
) -> tuple[Case, Answer]:
    case = make(shape, **of).to(dtype)
    return case, oracle(case)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill uninitialised memory with NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def run(case: Case, backend: str | None) -> Answer:
    """Compute the case with a backend, in the dtype of the case."""
    inputs = _leaves(case)
    q, k, v, log_decay, s, z = map(inputs.get, _LEAVES)
    y, state = ea_series(
        q,
        k,
        v,
        expansion=case.expansion,
        causal=case.causal,
        key_mask=case.key_mask,
        cu_seqlens=case.cu_seqlens,
        log_decay=log_decay,
        state=None if case.state is None else State(s, z, case.state.shift, case.expansion),
        return_state=True,
        backend=backend,
    )
    return _answer(case, y, state, inputs)


_LEAVES = ("q", "k", "v", "log_decay", "s", "z")


def _leaves(case: Case) -> dict[str, Tensor]:
    tensors = {"q": case.q, "k": case.k, "v": case.v}
    if case.log_decay is not None:
        tensors["log_decay"] = case.log_decay
    if case.state is not None:
        tensors |= {"s": case.state.s, "z": case.state.z}
    return {name: x.detach().clone().requires_grad_() for name, x in tensors.items()}


def _answer(case: Case, y: Tensor, state: State, inputs: dict[str, Tensor]) -> Answer:
    if case.log_decay is not None:
        state = unshifted(state)
    outputs = (y, state.s, state.z) if case.through_state else (y,)
    cotangents = [g.to(x.dtype) for g, x in zip(case.gradients(y, state), outputs, strict=False)]
    grads = torch.autograd.grad(outputs, list(inputs.values()), cotangents)
    detached = tree_map(Tensor.detach, state)
    return Answer(y.detach(), detached, dict(zip(inputs, grads, strict=True)))


def unshifted(state: State) -> State:
    """Return the state at a shift of 0. With decay, a backend may choose any shift."""
    shift = state.shift.detach()
    factor = torch.exp(-shift.square()).unsqueeze(-1)
    shift = shift.where(shift.isinf(), 0)
    return replace(state, s=state.s * factor, z=state.z * factor, shift=shift)


# Tolerances as multiples of kappa * eps. Errors of random cases are below 1.
VALUE, GRADIENT = 4, 4


def assert_answers(got: Answer, want: Answer, case: Case) -> None:
    """Assert errors below a small multiple of kappa * eps * max|v| plus the output's rounding."""
    dtype = case.q.dtype
    kappa = reference.condition(case.expansion)
    eps = torch.finfo(got.state.s.dtype).eps
    step = 0.0 if dtype == got.state.s.dtype else torch.finfo(dtype).eps
    v = _size(case.v)
    if case.state is not None and case.state.z.numel():
        s, z = case.state.s, case.state.z
        v += _size(s[..., 0] / z[..., 0] if isinstance(case.expansion, Taylor) else s / z)
    assert_near(got.y, want.y, VALUE * kappa * eps * v + step * _size(want.y), "y")
    assert_state(got.state, want.state, case, VALUE * eps)
    for name, grad in want.grads.items():
        assert got.grads[name].shape == grad.shape
        scale = (1 + 2 * max(_size(case.q), _size(case.k))) * (v + 1) + _size(grad)
        # The oracle's inputs are rounded as well. A gradient in half precision is rounded once
        # more as an output, and its cotangent as an input.
        bound = (GRADIENT * kappa * eps + step) * scale
        assert_near(got.grads[name], grad, bound, f"gradient of {name}")


def assert_state(got: State, want: State, case: Case, eps: float) -> None:
    torch.testing.assert_close(got.shift.double(), want.shift, rtol=eps, atol=0)
    if want.log_decay is not None:
        total, size = got.log_decay.double(), case.k.shape[1]
        torch.testing.assert_close(total, want.log_decay, rtol=size * eps, atol=0)
    for name, x, y in (("s", got.s, want.s), ("z", got.z, want.z)):
        biggest = want.z[..., ::2].sum(-1, keepdim=True) * (1 + _size(case.v))
        excess = (x.double() - y).abs() - 4 * eps * (y.abs() + biggest)
        assert not (excess > 0).any(), f"final {name} is off by {(x.double() - y).abs().max():.2e}"


def assert_near(got: Tensor, want: Tensor, bound: float, what: str) -> None:
    assert got.shape == want.shape, what
    assert got.isfinite().all(), f"{what} is not finite"
    if got.numel():
        error = float((got.double() - want).abs().max())
        assert error <= bound, f"{what} is off by {error:.2e}, more than {bound:.2e}"


def _size(x: Tensor) -> float:
    return float(x.abs().nan_to_num(0).max()) if x.numel() else 0.0
