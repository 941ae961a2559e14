"""EA-series, the public operator: checks, choice of backend, autograd, torch.library.

One op serves every form: y_i = S(q_i) / Z(q_i) (Eq. 16), where the sums run over all keys (Eq. 5),
over keys up to i (Eq. 6), over a new key and a state (Eq. 12, Eq. 13), or over a state alone.
"""

from functools import partial
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from eattn.ops import traceable
from eattn.ops.backends import BY_NAME, Backend, choose
from eattn.ops.checks import (
    check_cu_seqlens,
    check_log_decay,
    check_offsets,
    check_qkv,
    check_state,
    check_step,
)
from eattn.ops.expansion import DEFAULT_ORDER, Expansion, expansion_from_terms, resolve_expansion
from eattn.ops.inputs import Inputs
from eattn.ops.state import State, add_decays, empty_sums, total_decay
from eattn.ops.transforms import Operator, transform, transforming


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
    log_decay: Tensor | None = ...,
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
    log_decay: Tensor | None = ...,
    state: State | None = ...,
    return_state: Literal[True],
    backend: str | None = ...,
) -> tuple[Tensor, State]: ...
def ea_series(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    order: int = DEFAULT_ORDER,
    expansion: Expansion | None = None,
    causal: bool = False,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    log_decay: Tensor | None = None,
    state: State | None = None,
    return_state: bool = False,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, State]:
    """Element-wise attention in linear time (Eq. 5; causal: Eq. 6).

    y_i = sum_j w_ij v_j / sum_j w_ij, where w_ij expands e^(-(q_i - k_j)^2) into N products of
    features. Takes O(NLD) time and O(LD) memory.

    Parameters
    ----------
    q : Tensor, shape (B, Lq, D) or (1, Lq, D)
        Queries. A batch size of 1 is broadcast.
    k, v : Tensor, shape (B, Lk, D)
        Keys and values.
    order : int, default 6
        Highest power of the Taylor polynomial; even, 0 to 16. Cannot be combined with `expansion`.
    expansion : Taylor or Quadrature, optional
        Expansion of the weights. `Quadrature(25)` has the weights of exact EA to 1e-4 if q and k
        are well inside its grid, [-6, 6], and, in float32, some key is within 9 of each query.
    causal : bool, default False
        Let query i attend only to keys up to i. With Lq < Lk, the queries are aligned with the
        last Lq keys.
    key_mask : bool Tensor, shape (B, Lk), optional
        True for valid keys. Masked keys and values are never read.
    cu_seqlens : int32 Tensor, shape (n + 1,), optional
        Offsets of n sequences packed along L, with B == 1.
    log_decay : Tensor, shape (B, Lk, D) or (D,), optional
        Before token i, the weights of all earlier keys are multiplied by e^log_decay_i. Per token
        and channel, or constant per channel. Values must be at most 0, which is not checked; -inf
        forgets everything. A masked token does not decay. Needs `causal=True`.
    state : State, optional
        State of earlier keys and values, one row per sequence. Must have the same expansion.
    return_state : bool, default False
        Also return the state after the last key.
    backend : str, optional
        Name of the backend; by default the fastest that fits.

    Returns
    -------
    y : Tensor, shape (B, Lq, D)
    state : State, only if `return_state`

    Examples
    --------
    >>> q, k, v = torch.randn(3, 2, 10, 8).unbind()
    >>> y, state = ea_series(q[:, :6], k[:, :6], v[:, :6], causal=True, return_state=True)
    >>> rest = ea_series(q[:, 6:], k[:, 6:], v[:, 6:], causal=True, state=state)
    >>> torch.allclose(torch.cat([y, rest], 1), ea_series(q, k, v, causal=True), atol=1e-5)
    True
    """
    expansion = resolve_expansion(order, expansion)
    q, k, v = check_qkv(q, k, v, causal=causal, key_mask=key_mask)
    if log_decay is not None:
        check_log_decay(log_decay, k, causal)
    rows = q.shape[0]
    if cu_seqlens is not None:
        rows = check_cu_seqlens(cu_seqlens, q, k, values=False)
    if state is not None:
        check_state(state, rows, q, expansion)
    chosen, early = choose(backend, q, expansion), k.shape[1] - q.shape[1]
    if causal and early:  # all queries attend to the first keys
        mask = key_mask
        if key_mask is not None:
            mask, key_mask = key_mask[:, :early], key_mask[:, early:]
        decays = log_decay
        if log_decay is not None and log_decay.dim() == 3:
            decays, log_decay = log_decay[:, :early], log_decay[:, early:]
        state = _accumulate(k[:, :early], v[:, :early], mask, decays, state, expansion, chosen)
        k, v = k[:, early:], v[:, early:]
    tensors = q, k, v, key_mask, cu_seqlens, log_decay
    y, after = _apply(*tensors, state, expansion, causal, chosen, need_state=return_state)
    return (y, after) if return_state else y


def ea_series_step(
    q: Tensor, k: Tensor, v: Tensor, state: State, *, log_decay: Tensor | None = None
) -> tuple[Tensor, State]:
    """Process one causal token in O(ND), independent of the number of earlier tokens.

    Implements Eq. 12 to Eq. 16.

    Parameters
    ----------
    q, k, v : Tensor, shape (B, D)
        Query, key and value of the token.
    state : State
        State before the token; it defines the expansion.
    log_decay : Tensor, shape (B, D) or (D,), optional
        The state is multiplied by e^log_decay before the token is added.

    Returns
    -------
    y : Tensor, shape (B, D)
    state : State
        State after the token.

    Examples
    --------
    >>> y, state = ea_series_step(*torch.randn(3, 2, 8).unbind(), State.zeros(2, 8, order=6))
    >>> y.shape, state.order
    (torch.Size([2, 8]), 6)
    """
    q, k, v = check_step(q, k, v)
    check_state(state, q.shape[0], q)
    token = q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)
    if log_decay is not None:
        check_log_decay(log_decay, k, True)
        log_decay = log_decay.unsqueeze(1) if log_decay.dim() == 2 else log_decay
    expansion = state.expansion
    chosen = choose(None, q, expansion)
    y, after = _apply(*token, None, None, log_decay, state, expansion, True, chosen)
    return y.squeeze(1), after


def accumulate(
    k: Tensor,
    v: Tensor,
    *,
    order: int = DEFAULT_ORDER,
    expansion: Expansion | None = None,
    key_mask: Tensor | None = None,
    log_decay: Tensor | None = None,
    backend: str | None = None,
) -> State:
    """Return the state of keys and values, in O(NLD) (Eq. 12, Eq. 13 summed over all tokens).

    Parameters
    ----------
    k, v : Tensor, shape (B, L, D)
        Keys and values.
    order : int, default 6
        Highest power of the Taylor polynomial. Cannot be combined with `expansion`.
    expansion : Taylor or Quadrature, optional
        Expansion of the weights.
    key_mask : bool Tensor, shape (B, L), optional
        True for valid keys. Masked keys and values are never read.
    log_decay : Tensor, shape (B, L, D) or (D,), optional
        Log decay before each token, as in `ea_series`.
    backend : str, optional
        Name of the backend; by default the fastest that fits.

    Returns
    -------
    State

    Examples
    --------
    >>> accumulate(*torch.randn(2, 3, 100, 8).unbind(), order=2).s.shape
    torch.Size([3, 8, 3])
    """
    expansion = resolve_expansion(order, expansion)
    _, k, v = check_qkv(k, k, v, causal=False, key_mask=key_mask, names=("k", "k", "v"))
    if log_decay is not None:
        check_log_decay(log_decay, k, True)
    chosen = choose(backend, k, expansion)
    return _accumulate(k, v, key_mask, log_decay, None, expansion, chosen)


def readout(q: Tensor, state: State, *, backend: str | None = None) -> Tensor:
    """Attend to the keys and values in a state: y = num / den (Eq. 14 to Eq. 16).

    Parameters
    ----------
    q : Tensor, shape (B, L, D)
        Queries.
    state : State
        Sums over keys and values; it defines the expansion.
    backend : str, optional
        Name of the backend; by default the fastest that fits.

    Returns
    -------
    y : Tensor, shape (B, L, D)

    Examples
    --------
    >>> q, k, v = torch.randn(3, 2, 10, 8).unbind()
    >>> torch.allclose(readout(q, accumulate(k, v)), ea_series(q, k, v), atol=1e-5)
    True
    """
    q, _, _ = check_qkv(q, q, q, causal=False, key_mask=None)
    check_state(state, q.shape[0], q)
    no_keys = q.new_empty(q.shape[0], 0, q.shape[2])
    chosen = choose(backend, q, state.expansion)
    return _apply(q, no_keys, no_keys, None, None, None, state, state.expansion, False, chosen)[0]


def _accumulate(
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    log_decay: Tensor | None,
    state: State | None,
    expansion: Expansion,
    backend: Backend,
) -> State:
    """Return the state after keys and values."""
    # With decay the order of the keys matters, so the call is causal and its outputs are not used.
    causal = log_decay is not None
    q = k.detach() if causal else k[:, :0]
    return _apply(q, k, v, key_mask, None, log_decay, state, expansion, causal, backend)[1]


def _apply(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    log_decay: Tensor | None,
    state: State | None,
    expansion: Expansion,
    causal: bool,
    backend: Backend,
    *,
    need_state: bool = True,
) -> tuple[Tensor, State]:
    s = z = shift = total = None
    if state is not None:
        s, z, shift, total = state.s, state.z, state.shift, state.log_decay
        if shift.requires_grad:
            shift = shift.detach()  # the shift cancels in y, so its gradient is 0
    inputs = Inputs(q, k, v, key_mask, cu_seqlens, s, z, shift)
    if log_decay is not None:
        log_decay = log_decay.to(inputs.sum_dtype)
        if transforming():
            log_decay = log_decay.expand(k.shape)  # a transform folds axis 0 into the batch
        inputs = inputs._replace(log_decay=log_decay)
        if not backend.decays:
            backend = BY_NAME["eager"]
    options = expansion.terms, expansion.radius, causal, backend.name
    if traceable.exporting():
        # An exported program must consist of plain PyTorch operators.
        y, s, z, shift, _ = traceable.forward(inputs, expansion=expansion, causal=causal)
    elif transforming():
        operator = Operator("ea_series", partial(_op, *options), 3, cu_seqlens is not None)
        y, s, z, shift = transform(operator, *inputs)
    elif _needs_gradient(inputs) or _watched(q, k, v):
        y, s, z, shift = _op(*options, *inputs)
    else:
        # Skip the dispatcher: in a decoding step it would take longer than the kernel.
        if cu_seqlens is not None:
            check_offsets(cu_seqlens, q.shape[1])
        y, s, z, shift, _ = backend.forward(inputs, expansion=expansion, causal=causal, save=False)
    if log_decay is not None and need_state:
        total = add_decays(total, total_decay(log_decay, k, key_mask, cu_seqlens))
    return y, State(s, z, shift, expansion, total)


def _op(terms: int, radius: float, causal: bool, backend: str, *inputs: Any) -> tuple[Tensor, ...]:
    """Call the registered op; return y, s, z and shift."""
    save = _needs_gradient(Inputs(*inputs))
    outputs = torch.ops.eattn.ea_series(*inputs, terms, radius, causal, backend, save)
    return tuple(outputs[:4])


def _needs_gradient(inputs: Inputs) -> bool:
    return torch.is_grad_enabled() and any(
        x is not None and x.requires_grad
        for x in (*inputs[:3], inputs.s, inputs.z, inputs.log_decay)
    )


def _watched(*inputs: Tensor) -> bool:
    """Return whether the call must go through the dispatcher.

    True for compilers, tracers, subclasses, meta tensors and lazily negated views.
    """
    return (
        torch.compiler.is_compiling()  # first, because the other checks cannot be compiled
        or torch.jit.is_tracing()
        or _get_current_dispatch_mode() is not None
        or any(
            type(x) not in (Tensor, torch.nn.Parameter) or x.is_meta or x.is_neg() for x in inputs
        )
    )


# ---- torch.library ------------------------------------------------------------------------------

_SCHEMA_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? key_mask, Tensor? cu_seqlens,"
    " Tensor? s, Tensor? z, Tensor? shift, Tensor? log_decay"
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
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_COUNT = len(Inputs._fields)


@torch.library.impl(_library, "ea_series", "CompositeExplicitAutograd")
def _forward(*args: Any) -> tuple[Tensor, ...]:
    *tensors, terms, radius, causal, backend, save = args
    inputs = Inputs(*tensors)
    if inputs.cu_seqlens is not None:  # checked here because a traced tensor has no values
        check_offsets(inputs.cu_seqlens, inputs.q.shape[1])
    expansion = expansion_from_terms(terms, radius)
    y, s, z, shift, saved = BY_NAME[backend].forward(
        inputs, expansion=expansion, causal=causal, save=save
    )
    return y, s, z, shift, s.new_empty(0) if saved is None else saved


@torch.library.register_fake("eattn::ea_series", lib=_library)
def _forward_fake(*args: Any) -> tuple[Tensor, ...]:
    *tensors, terms, radius, causal, backend, save = args
    inputs, expansion = Inputs(*tensors), expansion_from_terms(terms, radius)
    q, rows, dtype = inputs.q, inputs.rows, inputs.sum_dtype
    D = q.shape[2]
    s, z = (empty_sums(rows, D, expansion, dtype, q.device) for _ in range(2))
    shape: tuple[int, ...] = (0,)
    if save and causal:
        shape = BY_NAME[backend].saved_shape(q, inputs.cu_seqlens, expansion)
    shift, saved = q.new_empty((rows, D), dtype=dtype), q.new_empty(shape, dtype=dtype)
    return q.new_empty(q.shape), s, z, shift, saved


@torch.library.impl(_library, "ea_series_backward", "CompositeExplicitAutograd")
def _backward(*args: Any) -> tuple[Tensor, ...]:
    *tensors, terms, radius, causal, backend = args
    cotangents, inputs = tensors[:3], Inputs(*tensors[3 : 3 + _COUNT])
    *final, saved = tensors[3 + _COUNT :]
    options = dict(expansion=expansion_from_terms(terms, radius), causal=causal)
    grads = BY_NAME[backend].backward(*cotangents, inputs, tuple(final), saved, **options)
    # A schema has no optional results, so an empty tensor stands for a missing gradient.
    return tuple(saved.new_empty(0) if g is None else g for g in grads)


@torch.library.register_fake("eattn::ea_series_backward", lib=_library)
def _backward_fake(*args: Any) -> tuple[Tensor, ...]:
    inputs, s = Inputs(*args[3 : 3 + _COUNT]), args[3 + _COUNT]
    expansion = expansion_from_terms(*args[7 + _COUNT : 9 + _COUNT])
    rows, D, _ = s.shape
    sums = [
        s.new_empty(0) if inputs.s is None else empty_sums(rows, D, expansion, s.dtype, s.device)
        for _ in range(2)
    ]
    decays = s.new_empty(0 if inputs.log_decay is None else inputs.log_decay.shape)
    return *(x.new_empty(x.shape) for x in inputs[:3]), *sums, decays


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, terms, radius, causal, backend, save = inputs
    if not save:
        raise RuntimeError("eattn::ea_series needs save=True when an input requires a gradient")
    ctx.save_for_backward(*tensors, *output[1:])
    ctx.options = terms, radius, causal, backend
    ctx.mark_non_differentiable(output[3], output[4])
    ctx.set_materialize_grads(False)


def _series_gradient(ctx: Any, gy: Any, gs: Any, gz: Any, *_: Any) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    inputs, (final_s, final_z) = Inputs(*saved[:_COUNT]), saved[_COUNT : _COUNT + 2]
    q, s, z = inputs.q, inputs.s, inputs.z
    gy = torch.zeros_like(q) if gy is None else gy
    if gs is not None or gz is not None:
        gs = torch.zeros_like(final_s) if gs is None else gs
        gz = torch.zeros_like(final_z) if gz is None else gz
    *dqkv, ds, dz, dg = torch.ops.eattn.ea_series_backward(gy, gs, gz, *saved, *ctx.options)
    state = (None, None) if s is None or z is None else (ds.to(s.dtype), dz.to(z.dtype))
    return *dqkv, None, None, *state, None, None if inputs.log_decay is None else dg, *[None] * 5


def _no_second_derivative(ctx: Any, *grads: Any) -> None:
    raise NotImplementedError("ea_series does not support a second derivative")


torch.library.register_autograd(
    "eattn::ea_series", _series_gradient, setup_context=_setup_context, lib=_library
)
torch.library.register_autograd("eattn::ea_series_backward", _no_second_derivative, lib=_library)
