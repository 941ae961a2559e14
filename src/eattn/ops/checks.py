"""Checks of the operators' arguments. Every message names the argument and what would work."""

import itertools

import torch
from torch import Tensor
from torch._C import _functorch, _TorchDispatchModeKey
from torch._subclasses.fake_tensor import is_fake
from torch.autograd import forward_ad

from eattn.ops.expansion import Expansion
from eattn.ops.state import State

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
TRACERS = (
    _TorchDispatchModeKey.FAKE,
    _TorchDispatchModeKey.PROXY,
    _TorchDispatchModeKey.FUNCTIONAL,
)


def has_values(x: Tensor) -> bool:
    """Return whether Python code can read x: not if it is traced, fake, meta or in a transform."""
    return not (
        torch.compiler.is_compiling()  # first, because the other checks cannot be compiled
        or x.is_meta
        or is_fake(x)
        or _functorch.is_functorch_wrapped_tensor(x)
        or any(torch._C._get_dispatch_mode(key) is not None for key in TRACERS)
    )


def is_readable(x: Tensor) -> bool:
    """Return whether x is not empty and can be read without a sync, so that it can be checked."""
    return has_values(x) and x.device.type == "cpu" and x.numel() > 0


def check_qkv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    key_mask: Tensor | None,
    names: tuple[str, str, str] = ("q", "k", "v"),
) -> tuple[Tensor, Tensor, Tensor]:
    """Check q [B or 1, Lq, D], k and v [B, Lk, D]; return them in one dtype, with batch size B."""
    if causal is not True and causal is not False:
        raise TypeError(f"causal must be a bool, got {type(causal).__name__}")
    q, k, v = _one_dtype(q, k, v, "[B, L, D]", names)
    B, Lk, D = k.shape
    if v.shape != k.shape:
        raise ValueError(f"v must have k's shape {_size(k)}, got {_size(v)}")
    if q.shape[0] not in (B, 1) or q.shape[2] != D:
        raise ValueError(f"q must be [{B}, L, {D}] to attend to k {_size(k)}, got {_size(q)}")
    if q.shape[0] != B:
        q = q.expand(B, -1, -1)
    if D == 0:
        raise ValueError("q, k and v must have at least one channel, got D = 0")
    if causal and q.shape[1] > Lk:
        raise ValueError(
            "causal=True aligns the last query with the last key and needs Lq <= Lk, got"
            f" Lq = {q.shape[1]} and Lk = {Lk}"
        )
    if key_mask is not None:
        check_mask(key_mask, k)
    return q, k, v


def check_step(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Check q, k, v [B, D] of one token; return them promoted to a common float dtype."""
    q, k, v = _one_dtype(q, k, v, "[B, D]", ("q", "k", "v"))
    shape = q.shape
    if k.shape != shape or v.shape != shape:
        name, x = ("v", v) if k.shape == shape else ("k", k)
        raise ValueError(f"{name} must have q's shape {_size(q)}, got {_size(x)}")
    return q, k, v


def check_cu_seqlens(cu_seqlens: Tensor, q: Tensor, k: Tensor, *, values: bool = True) -> int:
    """Check the offsets of sequences packed along L, with B = 1; return the number of sequences.

    With values=False, check only type and shape: the caller runs `check_offsets` later.
    """
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"cu_seqlens must be an int32 or int64 tensor, got {_kind(cu_seqlens)}")
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
        raise ValueError(f"cu_seqlens must be [n + 1] with n >= 1, got shape {_size(cu_seqlens)}")
    if q.shape[0] != 1:
        raise ValueError(
            f"cu_seqlens packs sequences along L and needs B = 1, got B = {q.shape[0]}"
        )
    if q.shape[1] != k.shape[1]:
        raise ValueError(
            f"cu_seqlens needs as many queries as keys, got Lq = {q.shape[1]}, Lk = {k.shape[1]}"
        )
    if cu_seqlens.device != q.device:
        raise ValueError(f"cu_seqlens must be on {q.device} like q, got {cu_seqlens.device}")
    if values:
        check_offsets(cu_seqlens, q.shape[1])
    return cu_seqlens.shape[0] - 1


def check_offsets(cu_seqlens: Tensor, L: int) -> None:
    """Check that offsets rise from 0 to L, if they are readable."""
    if not is_readable(cu_seqlens):
        return
    offsets = cu_seqlens.tolist()
    if offsets[0] != 0 or offsets[-1] != L:
        raise ValueError(
            f"cu_seqlens must run from 0 to L = {L}, got {offsets[0]} to {offsets[-1]}"
        )
    if any(a > b for a, b in itertools.pairwise(offsets)):
        raise ValueError(f"cu_seqlens must not decrease, got {offsets}")


def check_state(state: State, rows: int, q: Tensor, expansion: Expansion | None = None) -> None:
    """Check that a state has `rows` rows, the channels of q and, if given, this expansion."""
    if not isinstance(state, State):
        raise TypeError(f"state must be an eattn.State, got {type(state).__name__}")
    if expansion is None:
        expansion = state.expansion
    elif state.expansion != expansion:
        raise ValueError(
            f"state must have the expansion of the call, {expansion!r}, got {state.expansion!r}"
        )
    s, z, shift = state.s, state.z, state.shift
    for x in (s, z, shift):
        if not isinstance(x, Tensor):
            raise TypeError(f"state must hold tensors, got {type(x).__name__}")
    want = (rows, q.shape[-1], expansion.terms)
    if s.shape != want or z.shape != want or shift.shape != want[:2]:
        raise ValueError(
            f"state must have s, z {want} and shift {want[:2]},"
            f" got {_size(s)}, {_size(z)} and {_size(shift)}"
        )
    if state.log_decay is not None and state.log_decay.shape != want[:2]:
        found = _size(state.log_decay)
        raise ValueError(f"state must have log_decay {want[:2]} or None, got shape {found}")
    if s.dtype not in (torch.float32, torch.float64) or z.dtype != s.dtype:
        raise TypeError(f"state must be float32 or float64, got s {s.dtype} and z {z.dtype}")
    device = q.device
    if s.device != device or z.device != device or shift.device != device:
        raise ValueError(f"state must be on {device} like q, got {s.device}")


def check_log_decay(log_decay: Tensor, k: Tensor, causal: bool) -> None:
    """Check a log decay with the shape of k, [B, Lk, D] or [B, D] of a step, or [D]."""
    if not isinstance(log_decay, Tensor) or log_decay.dtype not in FLOATS:
        raise TypeError(f"log_decay must be a floating-point tensor, got {_kind(log_decay)}")
    check_dense("log_decay", log_decay)
    if not causal:
        raise ValueError("log_decay needs causal=True: without an order of tokens nothing decays")
    # Compare the number of axes first: B = D would be a guard in a graph with a symbolic B.
    want = k.shape if log_decay.dim() == k.dim() else k.shape[-1:]
    if log_decay.dim() != len(want) or log_decay.shape != want:
        raise ValueError(
            f"log_decay must have k's shape {_size(k)} or be [D] = {_size(k)[-1:]},"
            f" got shape {_size(log_decay)}"
        )
    if log_decay.device != k.device:
        raise ValueError(f"log_decay must be on {k.device} like k, got {log_decay.device}")


def _one_dtype(
    q: Tensor, k: Tensor, v: Tensor, shape: str, names: tuple[str, str, str]
) -> tuple[Tensor, Tensor, Tensor]:
    dim, device = shape.count(",") + 1, getattr(q, "device", None)
    for name, x in zip(names, (q, k, v), strict=True):
        if not isinstance(x, Tensor) or x.dtype not in FLOATS:
            raise TypeError(f"{name} must be a floating-point tensor, got {_kind(x)}")
        check_dense(name, x)
        if x.dim() != dim:
            raise ValueError(f"{name} must be {shape}, got shape {_size(x)}")
        if x.device != device:
            raise ValueError(f"{name} must be on {device} like q, got {x.device}")
    if (
        not torch.compiler.is_compiling()
        and forward_ad._current_level >= 0
        and any(forward_ad.unpack_dual(x).tangent is not None for x in (q, k, v))
    ):
        raise NotImplementedError("forward-mode gradients are not supported: use backward()")
    if not q.dtype == k.dtype == v.dtype:
        dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    return q, k, v


def check_mask(key_mask: Tensor, k: Tensor) -> None:
    """Check a bool mask [B, Lk] for k [B, Lk, D]."""
    if not isinstance(key_mask, Tensor) or key_mask.dtype != torch.bool:
        raise TypeError(f"key_mask must be a bool tensor, got {_kind(key_mask)}")
    check_dense("key_mask", key_mask)
    if key_mask.shape != k.shape[:2]:
        raise ValueError(f"key_mask must be [B, Lk] = {_size(k)[:2]}, got shape {_size(key_mask)}")
    if key_mask.device != k.device:
        raise ValueError(f"key_mask must be on {k.device} like k, got {key_mask.device}")


def check_dense(name: str, x: Tensor) -> None:
    """Raise unless x is neither nested nor sparse."""
    if x.is_nested:
        raise TypeError(
            f"{name} must be a dense tensor, got a nested one: pad the sequences and pass key_mask,"
            " or pack them along L and pass cu_seqlens"
        )
    if x.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got {x.layout}: use to_dense()")


def _size(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def _kind(x: object) -> str:
    return str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
