"""Wrong calls get an error that names the argument, before any kernel runs."""

import re
from dataclasses import replace

import pytest
import torch
from torch.utils._pytree import tree_map

from eattn import Quadrature, State, Taylor, accumulate, ea, ea_series, ea_series_step, readout
from eattn.nn import ElementwiseAttention
from eattn.ops.backends import BY_NAME


def x(*shape):
    return torch.zeros(shape)


X, ONE, TOKEN = x(2, 5, 3), x(1, 5, 3), x(2, 3)
MASK = torch.ones(2, 5, dtype=torch.bool)
STATE, Q9 = State.zeros(2, 3), State.zeros(2, 3, expansion=Quadrature(9))
NESTED = torch.nested.nested_tensor([x(4, 3), x(5, 3)], layout=torch.jagged)


def call(**options):
    return ea_series(X, X, X, **options)


def decayed(log_decay):
    return call(causal=True, log_decay=log_decay)


def step(**options):
    return ea_series_step(TOKEN, TOKEN, TOKEN, STATE, **options)


def packed(*offsets, keys=ONE, **options):
    cu_seqlens = torch.tensor(offsets, dtype=torch.int32)
    return ea_series(ONE, keys, keys, cu_seqlens=cu_seqlens, **options)


BOTH = "order and expansion cannot be combined, got order=6 and Taylor(order=6)"
EXPANSION = (
    "state must have the expansion of the call, Quadrature(nodes=9, radius=2.0),"
    " got Taylor(order=6)"
)
WRONG_VALUES = [
    (lambda: ea_series(x(5, 3), X, X), "q must be [B, L, D]"),
    (lambda: ea_series(X, x(1, 2, 5, 3), X), "k must be [B, L, D]"),
    (lambda: ea_series(X, X, x(2, 6, 3)), "v must have k's shape"),
    (lambda: ea_series(x(2, 5, 4), X, X), "q must be [2, L, 3]"),
    (lambda: ea_series(x(3, 5, 3), X, X), "q must be [2, L, 3]"),
    (lambda: ea_series(*[x(2, 5, 0)] * 3), "at least one channel"),
    (lambda: ea_series(X, X.to("meta"), X), "k must be on cpu"),
    (lambda: ea_series(x(2, 6, 3), X, X, causal=True), "needs Lq <= Lk, got Lq = 6 and Lk = 5"),
    (lambda: ea_series(X, ONE, ONE), "q must be [1, L, 3]"),
    (lambda: call(order=5), "order must be even"),
    (lambda: call(order=-2), "order must be even"),
    (lambda: call(order=18), "between 0 and 16"),
    (lambda: call(order=6, expansion=Taylor(6)), BOTH),
    (lambda: accumulate(X, X, order=6, expansion=Taylor(6)), BOTH),
    (lambda: State.zeros(2, 3, order=6, expansion=Taylor(6)), BOTH),
    (lambda: ElementwiseAttention(8, order=6, expansion=Taylor(6)), BOTH),
    (lambda: ElementwiseAttention(8, order=None, expansion=Taylor(6)), "cannot be combined"),
    (lambda: Quadrature(8), "nodes must be odd and between 5 and 1025"),
    (lambda: Quadrature(1027), "nodes must be odd and between 5 and 1025"),
    (lambda: Quadrature(9, 0), "radius must be above 0"),
    (lambda: Quadrature(9, -1), "radius must be above 0"),
    (lambda: Quadrature(9, float("nan")), "radius must be above 0"),
    (lambda: Quadrature(9, 4.5), "above 0 and at most 4 for 9 nodes, got 4.5"),
    (lambda: Quadrature(65, 33), "at most 32 for 65 nodes"),
    (lambda: call(key_mask=MASK[:, :4]), "key_mask must be [B, Lk] = (2, 5)"),
    (lambda: call(key_mask=MASK.to("meta")), "key_mask must be on cpu"),
    (lambda: call(cu_seqlens=torch.tensor([0, 5])), "packs sequences along L and needs B = 1"),
    (lambda: packed(0, 4, 2, 5), "cu_seqlens must not decrease"),
    (lambda: packed(0, 4), "cu_seqlens must run from 0 to L = 5"),
    (lambda: packed(0, 6), "cu_seqlens must run from 0 to L = 5"),
    (lambda: packed(1, 5), "cu_seqlens must run from 0"),
    (lambda: packed(5), "cu_seqlens must be [n + 1]"),
    (lambda: packed(0, 5, keys=x(1, 6, 3)), "cu_seqlens needs as many queries as keys"),
    (lambda: packed(0, 2, 5, state=State.zeros(1, 3)), "state must have s, z (2, 3, 7)"),
    (lambda: call(log_decay=x(3)), "log_decay needs causal=True"),
    (lambda: decayed(x(2, 5)), "log_decay must have k's shape (2, 5, 3) or be [D] = (3,)"),
    (lambda: decayed(x(1, 5, 3)), "log_decay must have k's shape (2, 5, 3)"),
    (lambda: decayed(x(4)), "log_decay must have k's shape (2, 5, 3) or be [D] = (3,), got"),
    (lambda: decayed(X.to("meta")), "log_decay must be on cpu like k, got meta"),
    (lambda: accumulate(X, X, log_decay=x(2, 3)), "log_decay must have k's shape"),
    (lambda: step(log_decay=X), "log_decay must have k's shape (2, 3) or be [D]"),
    (lambda: step(log_decay=x(2)), "log_decay must have k's shape (2, 3) or be [D]"),
    (lambda: packed(0, 4, causal=True, log_decay=x(3)), "cu_seqlens must run from 0 to L = 5"),
    (lambda: call(state=replace(STATE, log_decay=x(3))), "state must have log_decay (2, 3) or"),
    (lambda: call(expansion=Quadrature(9), state=STATE), EXPANSION),
    (lambda: call(expansion=Quadrature(9, 1), state=Q9), "radius=1.0), got Quadrature(nodes=9"),
    (lambda: call(order=4, state=STATE), "of the call, Taylor(order=4), got Taylor(order=6)"),
    (lambda: call(state=State.zeros(2, 3, order=2)), "Taylor(order=6), got Taylor(order=2)"),
    (lambda: call(state=replace(STATE, z=x(2, 3, 5))), "state must have s, z (2, 3, 7)"),
    (lambda: call(state=State.zeros(2, 4)), "state must have s, z (2, 3, 7)"),
    (lambda: call(state=State.zeros(1, 3)), "state must have s, z (2, 3, 7)"),
    (lambda: readout(x(2, 5, 4), STATE), "state must have s, z (2, 4, 7)"),
    (lambda: call(backend="cuda"), "backend must be None or one of native, triton, eager"),
    (lambda: accumulate(X, X, backend="cuda"), "backend must be None or one of"),
    (lambda: readout(X, STATE, backend="cuda"), "backend must be None or one of"),
    (lambda: call(backend="triton"), "backend 'triton' cannot run here"),
    (lambda: ea_series_step(X, X, X, STATE), "q must be [B, D]"),
    (lambda: ea_series_step(TOKEN, x(2, 4), TOKEN, STATE), "k must have q's shape"),
    (lambda: accumulate(X, x(2, 4, 3)), "v must have k's shape"),
    (lambda: accumulate(X[0], X), "k must be [B, L, D]"),
    (lambda: State.zeros(2, 3, order=3), "order must be even"),
    (lambda: State.merge(STATE, State.zeros(2, 3, order=2)), "got Taylor(order=2)"),
    (lambda: State.merge(STATE, State.zeros(1, 3)), "b must have a's shape"),
]
WRONG_TYPES = [
    (lambda: ea_series(X, X.long(), X), "k must be a floating-point"),
    (lambda: ea_series(X, X, X.cfloat()), "v must be a floating-point"),
    (lambda: ea_series([1.0], X, X), "q must be a floating-point"),
    (lambda: ea_series(X, X.to_sparse(), X), "k must be a dense tensor, got torch.sparse_coo"),
    (lambda: ea_series(NESTED, NESTED, NESTED), "q must be a dense tensor, got a nested one"),
    (lambda: ea(X, X, X.to_sparse()), "v must be a dense tensor"),
    (lambda: ea_series_step(TOKEN.to_sparse(), TOKEN, TOKEN, STATE), "q must be a dense tensor"),
    (lambda: call(key_mask=MASK.to_sparse()), "key_mask must be a dense tensor"),
    (lambda: ElementwiseAttention(3)(X.to_sparse()), "x must be a dense tensor"),
    (lambda: call(causal="no"), "causal must be a bool"),
    (lambda: call(order=6.0), "order must be an int"),
    (lambda: call(order=True), "order must be an int"),
    (lambda: call(expansion=6), "must be eattn.Taylor or eattn.Quadrature, got int"),
    (lambda: Quadrature(9.0), "nodes must be an int, got float"),
    (lambda: Quadrature(9, "2"), "radius must be a number, got str"),
    (lambda: call(key_mask=MASK.float()), "key_mask must be a bool tensor"),
    (lambda: call(key_mask=[True]), "key_mask must be a bool tensor"),
    (lambda: call(cu_seqlens=x(2)), "cu_seqlens must be an int32 or int64 tensor"),
    (lambda: decayed(X.long()), "log_decay must be a floating-point tensor, got torch.int64"),
    (lambda: decayed(-0.5), "log_decay must be a floating-point tensor, got float"),
    (lambda: decayed(X.to_sparse()), "log_decay must be a dense tensor"),
    (lambda: call(state=X), "state must be an eattn.State"),
    (lambda: call(state=tree_map(torch.Tensor.half, STATE)), "must be float32 or float64"),
    (lambda: ea_series_step(TOKEN, TOKEN, TOKEN, None), "state must be an eattn.State"),
    (lambda: readout(X, State(None, None, None, Taylor(6))), "state must hold tensors"),
    (lambda: State.merge(STATE, None), "b must be an eattn.State"),
    (lambda: State.zeros(2, 3, dtype=torch.float16), "dtype must be float32 or float64"),
]
CALLS = [(*case, ValueError) for case in WRONG_VALUES]
CALLS += [(*case, TypeError) for case in WRONG_TYPES]


@pytest.mark.parametrize(("wrong", "message", "error"), CALLS, ids=[m for _, m, _ in CALLS])
def test_wrong_call_names_the_argument(wrong, message, error):
    with pytest.raises(error, match=re.escape(message)):
        wrong()


def test_native_backend_refuses_other_devices():
    if BY_NAME["native"].why_not is not None:
        pytest.skip(BY_NAME["native"].why_not)
    meta = X.to("meta")
    with pytest.raises(ValueError, match="it runs on the CPU, and q is on meta"):
        ea_series(meta, meta, meta, backend="native")
