"""Wrong calls get an error that names the argument, before any kernel runs."""

import re

import pytest
import torch

from eattn import Quadrature, State, accumulate, ea_series, ea_series_step, readout
from eattn.ops import series


def x(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def cu(*offsets):
    return torch.tensor(offsets, dtype=torch.int32)


X = x(2, 5, 3)
ONE = x(1, 5, 3)
MASK = torch.ones(2, 5, dtype=torch.bool)

CALLS = {
    "q of rank 2": (lambda: ea_series(x(5, 3), X, X), ValueError, "q must be [B, L, D]"),
    "k of rank 4": (lambda: ea_series(X, x(1, 2, 5, 3), X), ValueError, "k must be [B, L, D]"),
    "v longer than k": (lambda: ea_series(X, X, x(2, 6, 3)), ValueError, "v must have k's shape"),
    "q of other width": (lambda: ea_series(x(2, 5, 4), X, X), ValueError, "q must be [2, L, 3]"),
    "q of other batch": (lambda: ea_series(x(3, 5, 3), X, X), ValueError, "q must be [2, L, 3]"),
    "no channels": (lambda: ea_series(*[x(2, 5, 0)] * 3), ValueError, "at least one channel"),
    "integers": (lambda: ea_series(X, X.long(), X), TypeError, "k must be a floating-point"),
    "a complex v": (lambda: ea_series(X, X, X.cfloat()), TypeError, "v must be a floating-point"),
    "a list": (lambda: ea_series([1.0], X, X), TypeError, "q must be a floating-point"),
    "another device": (lambda: ea_series(X, X.to("meta"), X), ValueError, "k must be on cpu"),
    "odd order": (lambda: ea_series(X, X, X, order=5), ValueError, "order must be even"),
    "negative order": (lambda: ea_series(X, X, X, order=-2), ValueError, "order must be even"),
    "huge order": (lambda: ea_series(X, X, X, order=18), ValueError, "between 0 and 16"),
    "order as float": (lambda: ea_series(X, X, X, order=6.0), TypeError, "order must be an int"),
    "expansion as a number": (
        lambda: ea_series(X, X, X, expansion=6),
        TypeError,
        "expansion must be eattn.Taylor or eattn.Quadrature, got int",
    ),
    "even nodes": (lambda: Quadrature(8), ValueError, "nodes must be odd and between 5 and 33"),
    "too many nodes": (lambda: Quadrature(35), ValueError, "nodes must be odd and between 5 and"),
    "nodes as float": (lambda: Quadrature(9.0), TypeError, "nodes must be an int, got float"),
    "radius as text": (lambda: Quadrature(9, "2"), TypeError, "radius must be a number, got str"),
    "no radius": (lambda: Quadrature(9, 0), ValueError, "radius must be above 0"),
    "negative radius": (lambda: Quadrature(9, -1), ValueError, "radius must be above 0"),
    "nodes too far apart": (
        lambda: Quadrature(9, 4.5),
        ValueError,
        "radius must be above 0 and at most 4 for 9 nodes, got 4.5",
    ),
    "a radius too large": (lambda: Quadrature(33, 7), ValueError, "at most 6.5 for 33 nodes"),
    "a NaN radius": (lambda: Quadrature(9, float("nan")), ValueError, "radius must be above 0"),
    "state of another expansion": (
        lambda: ea_series(X, X, X, expansion=Quadrature(9), state=State.zeros(2, 3, order=6)),
        ValueError,
        "state must have the 9 terms of Quadrature(nodes=9, radius=2.0), got 7 terms",
    ),
    "step of another expansion": (
        lambda: ea_series_step(
            *x(3, 2, 3).unbind(), State.zeros(2, 3, order=6), expansion=Quadrature(9)
        ),
        ValueError,
        "state must have the 9 terms of Quadrature(nodes=9, radius=2.0), got 7 terms",
    ),
    "order as bool": (lambda: ea_series(X, X, X, order=True), TypeError, "order must be an int"),
    "causal cross-attention": (
        lambda: ea_series(x(2, 4, 3), X, X, causal=True),
        ValueError,
        "causal=True needs as many queries as keys",
    ),
    "mask of wrong shape": (
        lambda: ea_series(X, X, X, key_mask=MASK[:, :4]),
        ValueError,
        "key_mask must be [B, Lk] = (2, 5)",
    ),
    "mask of floats": (
        lambda: ea_series(X, X, X, key_mask=MASK.float()),
        TypeError,
        "key_mask must be",
    ),
    "mask as list": (lambda: ea_series(X, X, X, key_mask=[True]), TypeError, "key_mask must be"),
    "cu_seqlens with B = 2": (
        lambda: ea_series(X, X, X, cu_seqlens=cu(0, 5)),
        ValueError,
        "cu_seqlens packs sequences along L and needs B = 1",
    ),
    "cu_seqlens decreasing": (
        lambda: ea_series(ONE, ONE, ONE, cu_seqlens=cu(0, 4, 2, 5)),
        ValueError,
        "cu_seqlens must not decrease",
    ),
    "cu_seqlens short of L": (
        lambda: ea_series(ONE, ONE, ONE, cu_seqlens=cu(0, 4)),
        ValueError,
        "cu_seqlens must run from 0 to L = 5",
    ),
    "cu_seqlens beyond L": (
        lambda: ea_series(ONE, ONE, ONE, cu_seqlens=cu(0, 6)),
        ValueError,
        "cu_seqlens must run from 0 to L = 5",
    ),
    "cu_seqlens not from 0": (
        lambda: ea_series(ONE, ONE, ONE, cu_seqlens=cu(1, 5)),
        ValueError,
        "cu_seqlens must run from 0",
    ),
    "cu_seqlens of floats": (
        lambda: ea_series(ONE, ONE, ONE, cu_seqlens=torch.tensor([0.0, 5.0])),
        TypeError,
        "cu_seqlens must be an int32 or int64 tensor",
    ),
    "cu_seqlens of rank 2": (
        lambda: ea_series(ONE, ONE, ONE, cu_seqlens=cu(0, 5)[None]),
        ValueError,
        "cu_seqlens must be [n + 1]",
    ),
    "cu_seqlens with cross-attention": (
        lambda: ea_series(ONE, x(1, 6, 3), x(1, 6, 3), cu_seqlens=cu(0, 5)),
        ValueError,
        "cu_seqlens needs as many queries as keys",
    ),
    "state of another order": (
        lambda: ea_series(X, X, X, order=4, causal=True, state=State.zeros(2, 3, order=6)),
        ValueError,
        "state must have the 5 terms of Taylor(order=4), got 7 terms",
    ),
    "state of another width": (
        lambda: ea_series(X, X, X, state=State.zeros(2, 4)),
        ValueError,
        "state must have s, z (2, 3, 7)",
    ),
    "state of another batch": (
        lambda: ea_series(X, X, X, state=State.zeros(1, 3)),
        ValueError,
        "state must have s, z (2, 3, 7)",
    ),
    "packed calls want a row per sequence": (
        lambda: ea_series(ONE, ONE, ONE, cu_seqlens=cu(0, 2, 5), state=State.zeros(1, 3)),
        ValueError,
        "state must have s, z (2, 3, 7)",
    ),
    "state as a tensor": (
        lambda: ea_series(X, X, X, state=X),
        TypeError,
        "state must be an eattn.State",
    ),
    "state in half precision": (
        lambda: ea_series(X, X, X, state=State(*(t.half() for t in State.zeros(2, 3)))),
        TypeError,
        "state must be float32 or float64",
    ),
    "unknown backend": (
        lambda: ea_series(X, X, X, backend="cuda"),
        ValueError,
        "backend must be None or one of eager, native",
    ),
    "backend that is not there": (
        lambda: ea_series(X, X, X, backend="triton"),
        ValueError,
        "backend 'triton' cannot run here",
    ),
    "step with an L axis": (
        lambda: ea_series_step(X, X, X, State.zeros(2, 3)),
        ValueError,
        "q must be [B, D]",
    ),
    "step of unequal shapes": (
        lambda: ea_series_step(x(2, 3), x(2, 4), x(2, 3), State.zeros(2, 3)),
        ValueError,
        "k must have q's shape",
    ),
    "step without a state": (
        lambda: ea_series_step(x(2, 3), x(2, 3), x(2, 3), None),
        TypeError,
        "state must be an eattn.State",
    ),
    "accumulate of unequal shapes": (
        lambda: accumulate(X, x(2, 4, 3)),
        ValueError,
        "v must have k's shape",
    ),
    "accumulate of a matrix": (lambda: accumulate(X[0], X), ValueError, "k must be [B, L, D]"),
    "accumulate on an unknown backend": (
        lambda: accumulate(X, X, backend="cuda"),
        ValueError,
        "backend must be None or one of",
    ),
    "readout on an unknown backend": (
        lambda: readout(X, State.zeros(2, 3), backend="cuda"),
        ValueError,
        "backend must be None or one of",
    ),
    "causal as a word": (
        lambda: ea_series(X, X, X, causal="no"),
        TypeError,
        "causal must be a bool",
    ),
    "a state of odd order": (
        lambda: ea_series_step(x(2, 3), x(2, 3), x(2, 3), State(x(2, 3, 4), x(2, 3, 4), x(2, 3))),
        ValueError,
        "order must be even",
    ),
    "a state of nothing": (
        lambda: readout(X, State(None, None, None)),
        TypeError,
        "state must hold tensors",
    ),
    "merge with nothing": (
        lambda: State.merge(State.zeros(2, 3), None),
        TypeError,
        "b must be an eattn.State",
    ),
    "readout of another width": (
        lambda: readout(x(2, 5, 4), State.zeros(2, 3)),
        ValueError,
        "state must have s, z (2, 4, 7)",
    ),
    "zeros of odd order": (lambda: State.zeros(2, 3, order=3), ValueError, "order must be even"),
    "zeros in half precision": (
        lambda: State.zeros(2, 3, dtype=torch.float16),
        TypeError,
        "dtype must be float32 or float64",
    ),
    "merge of other orders": (
        lambda: State.merge(State.zeros(2, 3, order=2), State.zeros(2, 3, order=6)),
        ValueError,
        "b must have a's shape",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_names_the_argument(name):
    call, error, message = CALLS[name]
    with pytest.raises(error, match=re.escape(message)):
        call()


def test_a_native_backend_refuses_other_devices_and_says_why():
    if series._WHY_NOT["native"] is not None:
        pytest.skip(series._WHY_NOT["native"])
    meta = X.to("meta")
    with pytest.raises(ValueError, match="it runs on the CPU, and q is on meta"):
        ea_series(meta, meta, meta, backend="native")
