"""EA-series, the public operator: checks, choice of backend, autograd, torch.library.

One op serves every form. y_i = S(q_i) / Z(q_i) (Eq. 16) over the keys that i may see: all of them
(Eq. 5), those up to i (Eq. 6), one more at a time (Eq. 12, Eq. 13), or those in a given state.
Only this file knows the backends.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from eattn.ops import eager, native, traceable, triton
from eattn.ops.checks import (
    check_cu_seqlens,
    check_offsets,
    check_qkv,
    check_state,
    check_step,
)
from eattn.ops.expansion import Expansion, chosen, of
from eattn.ops.state import State, empty_sums

Backend = tuple[Callable[..., tuple[Any, ...]], Callable[..., tuple[Any, ...]]]  # forward, backward


def _native(isa: str | None) -> Backend:
    return partial(native.forward, isa=isa), partial(native.backward, isa=isa)


_IMPLEMENTATIONS: dict[str, Backend] = {
    "eager": (eager.forward, eager.backward),
    "native": _native(None),
    "native-avx512": _native("avx512"),
    "native-avx2": _native("avx2"),
    "native-baseline": _native("baseline"),
    "triton": (triton.forward, triton.backward),
}
# Why each backend cannot run here, found out once: torch.compile traces through the choice.
_WHY_NOT: dict[str, str | None] = {
    "eager": None,
    "native": native.unavailable(),
    "native-avx512": native.unavailable("avx512"),
    "native-avx2": native.unavailable("avx2"),
    "native-baseline": native.unavailable("baseline"),
    "triton": triton.unavailable(),
}
BACKENDS = tuple(_WHY_NOT)


@overload
def ea_series(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    order: int = ...,
    expansion: Expansion | None = ...,
    causal: bool = ...,
    key_mask: Tensor | None = ...,
    cu_seqlens: Tensor | None = ...,
    state: State | None = ...,
    return_state: Literal[False] = ...,
    backend: str | None = ...,
) -> Tensor: ...
@overload
def ea_series(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    order: int = ...,
    expansion: Expansion | None = ...,
    causal: bool = ...,
    key_mask: Tensor | None = ...,
    cu_seqlens: Tensor | None = ...,
    state: State | None = ...,
    return_state: Literal[True],
    backend: str | None = ...,
) -> tuple[Tensor, State]: ...
def ea_series(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    order: int = 6,
    expansion: Expansion | None = None,
    causal: bool = False,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    state: State | None = None,
    return_state: bool = False,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, State]:
    """y_i = sum_j w_ij v_j / sum_j w_ij, w_ij = e^(-k_j^2) P(2 q_i k_j), P the Taylor polynomial of
    e^x to the even power `order`, in O(NLD) time and O(LD) memory (Eq. 5; causal: Eq. 6).

    `expansion`, if there is one, takes the place of `order`: `Quadrature(25)` is EA itself, to
    1e-4, for q and k of up to 6.

    q [B, Lq, D], k and v [B, Lk, D] -> y [B, Lq, D]. `key_mask` [B, Lk] is True for real keys.
    `cu_seqlens` [n + 1] packs n sequences along L, with B = 1. `state` holds earlier keys; with
    `return_state` comes the state that also holds these, one row per sequence.

    >>> q, k, v = torch.randn(3, 2, 10, 8).unbind()
    >>> y, state = ea_series(q[:, :6], k[:, :6], v[:, :6], causal=True, return_state=True)
    >>> rest = ea_series(q[:, 6:], k[:, 6:], v[:, 6:], causal=True, state=state)
    >>> torch.allclose(torch.cat([y, rest], 1), ea_series(q, k, v, causal=True), atol=1e-5)
    True
    """
    expansion = chosen(order, expansion)
    q, k, v = check_qkv(q, k, v, causal=causal, key_mask=key_mask)
    rows = q.shape[0] if cu_seqlens is None else check_cu_seqlens(cu_seqlens, q, k)
    if state is not None:
        check_state(state, rows, q, expansion)
    y, after = _apply(q, k, v, key_mask, cu_seqlens, state, expansion, causal, choose(backend, q))
    return (y, after) if return_state else y


def ea_series_step(
    q: Tensor, k: Tensor, v: Tensor, state: State, *, expansion: Expansion | None = None
) -> tuple[Tensor, State]:
    """One causal token in O(ND), whatever came before (Eq. 12 to Eq. 16): q, k, v, y are [B, D].

    A state does not say what it is an expansion of: without `expansion` it is Taylor's.

    >>> y, state = ea_series_step(*torch.randn(3, 2, 8).unbind(), State.zeros(2, 8, order=6))
    >>> y.shape, state.order
    (torch.Size([2, 8]), 6)
    """
    q, k, v = check_step(q, k, v)
    expansion = _of_state(state, expansion)
    check_state(state, q.shape[0], q, expansion)
    token = q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)
    y, after = _apply(*token, None, None, state, expansion, True, choose(None, q))
    return y.squeeze(1), after


def accumulate(
    k: Tensor,
    v: Tensor,
    *,
    order: int = 6,
    expansion: Expansion | None = None,
    key_mask: Tensor | None = None,
    backend: str | None = None,
) -> State:
    """The state of keys and values [B, L, D], in O(NLD) (Eq. 12, Eq. 13 summed over all tokens).

    >>> accumulate(*torch.randn(2, 3, 100, 8).unbind(), order=2).s.shape
    torch.Size([3, 8, 3])
    """
    expansion = chosen(order, expansion)
    _, k, v = check_qkv(k, k, v, causal=False, key_mask=key_mask, names=("k", "k", "v"))
    no_queries = k.new_empty(k.shape[0], 0, k.shape[2])
    backend = choose(backend, k)
    return _apply(no_queries, k, v, key_mask, None, None, expansion, False, backend)[1]


def readout(
    q: Tensor, state: State, *, expansion: Expansion | None = None, backend: str | None = None
) -> Tensor:
    """y = num / den at q [B, L, D], over the keys the state holds, in O(NLD) (Eq. 14 to Eq. 16).

    >>> q, k, v = torch.randn(3, 2, 10, 8).unbind()
    >>> torch.allclose(readout(q, accumulate(k, v)), ea_series(q, k, v), atol=1e-5)
    True
    """
    q, _, _ = check_qkv(q, q, q, causal=False, key_mask=None)
    expansion = _of_state(state, expansion)
    check_state(state, q.shape[0], q, expansion)
    no_keys = q.new_empty(q.shape[0], 0, q.shape[2])
    backend = choose(backend, q)
    return _apply(q, no_keys, no_keys, None, None, state, expansion, False, backend)[0]


def _of_state(state: State, expansion: Expansion | None) -> Expansion:
    """The expansion that was given, or Taylor's of as many terms as the state has."""
    if not isinstance(state, State):
        raise TypeError(f"state must be an eattn.State, got {type(state).__name__}")
    if expansion is None and isinstance(state.s, Tensor):
        return chosen(state.order, None)
    return chosen(6, expansion)


def backends() -> dict[str, str | None]:
    """What can serve `ea_series` here and now: None, or the reason it cannot."""
    why = {name: _WHY_NOT[name] for name in ("eager", "native", "triton")}
    why["triton"] = why["triton"] or triton.no_device()  # asked only now: it wakes the driver
    return why


def choose(backend: str | None, q: Tensor) -> str:
    """The fastest backend that fits the inputs, or the one asked for if it can run."""
    device = q.device.type
    if backend is None:
        backend = {"cpu": "native", "cuda": "triton"}.get(device, "eager")
        return backend if _WHY_NOT[backend] is None else "eager"
    if backend not in BACKENDS:
        raise ValueError(f"backend must be None or one of {', '.join(BACKENDS)}; got {backend!r}")
    why = _WHY_NOT[backend]
    if why is None and backend.startswith("native") and device != "cpu":
        why = f"it runs on the CPU, and q is on {q.device}"
    if why is None and backend == "triton" and device != triton.DEVICE:
        why = f"it runs on a CUDA or ROCm device, and q is on {q.device}"
    if why is not None:
        raise ValueError(f"backend {backend!r} cannot run here: {why}")
    return backend


def _apply(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    state: State | None,
    expansion: Expansion,
    causal: bool,
    backend: str,
) -> tuple[Tensor, State]:
    s, z, shift = (None, None, None) if state is None else state
    if shift is not None and shift.requires_grad:
        shift = shift.detach()  # it cancels in y, so its gradient is 0
    save = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in (q, k, v, s, z)
    )
    inputs = (q, k, v, key_mask, cu_seqlens, s, z, shift)
    if traceable.exporting():
        if cu_seqlens is not None:
            raise ValueError("cu_seqlens cannot be exported: export padded sequences with key_mask")
        # An exported program must be made of plain operators.
        padded = (q, k, v, key_mask, s, z, shift)
        y, *after, _ = traceable.forward(padded, expansion=expansion, causal=causal)
    elif save or _watched(q, k, v):
        y, *after, _ = torch.ops.eattn.ea_series(
            *inputs, expansion.terms, expansion.radius, causal, backend, save
        )
    else:
        # Straight to the kernel: a decoding step would spend longer in the dispatcher than in it.
        options: dict[str, Any] = dict(expansion=expansion, causal=causal, save=False)
        y, *after, _ = _IMPLEMENTATIONS[backend][0](*inputs, **options)
    return y, State(*after)


def _watched(*inputs: Tensor) -> bool:
    """Whether something other than plain eager execution wants to see the call.

    Compilers, tracers, transforms, subclasses, lazily negated views.
    """
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or _get_current_dispatch_mode() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
        or any(type(x) not in (Tensor, torch.nn.Parameter) or x.is_neg() for x in inputs)
    )


# ---- torch.library ------------------------------------------------------------------------------

_SCHEMA_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? key_mask, Tensor? cu_seqlens,"
    " Tensor? s, Tensor? z, Tensor? shift"
)
_library = torch.library.Library("eattn", "DEF")
_library.define(
    f"ea_series({_SCHEMA_INPUTS}, int terms, float radius, bool causal, str backend, bool save)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    f"ea_series_backward(Tensor gy, Tensor? gs, Tensor? gz, {_SCHEMA_INPUTS},"
    " Tensor final_s, Tensor final_z, Tensor final_shift, Tensor saved,"
    " int terms, float radius, bool causal, str backend)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.impl(_library, "ea_series", "CompositeExplicitAutograd")
def _forward(*args: Any) -> eager.Outputs:
    *inputs, terms, radius, causal, backend, save = args
    if inputs[4] is not None:
        check_offsets(inputs[4], inputs[0].shape[1])
    options = dict(expansion=of(terms, radius), causal=causal, save=save)
    y, s, z, shift, saved = _IMPLEMENTATIONS[backend][0](*inputs, **options)
    return y, s, z, shift, s.new_empty(0) if saved is None else saved


@torch.library.register_fake("eattn::ea_series", lib=_library)
def _forward_fake(*args: Any) -> eager.Outputs:
    q, _, _, _, cu_seqlens, s, _, _, terms, _, causal, backend, save = args
    B, _, D = q.shape
    wide = q.dtype == torch.float64 or (s is not None and s.dtype == torch.float64)
    dtype = torch.float64 if wide else torch.float32
    rows = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    sums, weights = (empty_sums(rows, D, terms, dtype, q.device) for _ in range(2))
    kept_by = triton.saved_shape if backend == "triton" else native.saved_shape
    keeps = backend != "eager" and save and causal
    shape = kept_by(q, cu_seqlens, terms) if keeps else (0,)
    shift, saved = q.new_empty((rows, D), dtype=dtype), q.new_empty(shape, dtype=dtype)
    return q.new_empty(q.shape), sums, weights, shift, saved


@torch.library.impl(_library, "ea_series_backward", "CompositeExplicitAutograd")
def _backward(*args: Any) -> tuple[Tensor, ...]:
    *tensors, terms, radius, causal, backend = args
    options = dict(expansion=of(terms, radius), causal=causal)
    grads = _IMPLEMENTATIONS[backend][1](*tensors, **options)
    # A schema knows no optional results: an empty tensor stands for the gradient of no state.
    return tuple(tensors[-1].new_empty(0) if g is None else g for g in grads)


@torch.library.register_fake("eattn::ea_series_backward", lib=_library)
def _backward_fake(*args: Any) -> tuple[Tensor, ...]:
    _, _, _, q, k, v, _, _, s, _, _, final_s, *_ = args
    rows, D, N = final_s.shape
    like = final_s.dtype, final_s.device
    sums = [final_s.new_empty(0) if s is None else empty_sums(rows, D, N, *like) for _ in range(2)]
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), *sums


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, key_mask, cu_seqlens, s, z, shift, terms, radius, causal, backend, save = inputs
    if not save:
        raise RuntimeError("eattn::ea_series was called with save=False, but a gradient is wanted")
    _, *final = output
    ctx.save_for_backward(q, k, v, key_mask, cu_seqlens, s, z, shift, *final)
    ctx.options = terms, radius, causal, backend
    ctx.mark_non_differentiable(output[3], output[4])
    ctx.set_materialize_grads(False)


def _series_gradient(ctx: Any, gy: Any, gs: Any, gz: Any, *_: Any) -> tuple[Any, ...]:
    q, k, v, key_mask, cu_seqlens, s, z, shift, *final = ctx.saved_tensors
    gy = torch.zeros_like(q) if gy is None else gy
    if gs is not None or gz is not None:
        gs = torch.zeros_like(final[0]) if gs is None else gs
        gz = torch.zeros_like(final[1]) if gz is None else gz
    inputs = (q, k, v, key_mask, cu_seqlens, s, z, shift)
    dq, dk, dv, ds, dz = torch.ops.eattn.ea_series_backward(
        gy, gs, gz, *inputs, *final, *ctx.options
    )
    of_state = (None, None) if s is None else (ds.to(s.dtype), dz.to(z.dtype))
    return dq, dk, dv, None, None, *of_state, *[None] * 6


def _no_second_derivative(ctx: Any, *grads: Any) -> None:
    raise NotImplementedError(
        "ea_series has no second derivative: its backward is not differentiable"
    )


torch.library.register_autograd(
    "eattn::ea_series", _series_gradient, setup_context=_setup_context, lib=_library
)
torch.library.register_autograd("eattn::ea_series_backward", _no_second_derivative, lib=_library)
