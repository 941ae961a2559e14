"""Fused CPU kernels: the C++ under native/, called through ctypes.

Memory O(LD): the forward keeps its state every CHECKPOINT tokens, the backward recomputes the rest.
"""

import ctypes
import struct
from pathlib import Path

import torch
from torch import Tensor

from eattn.ops.expansion import Expansion
from eattn.ops.state import dense, empty_sums, laid_out

LIBRARY = Path(__file__).with_name("_native.so")
ABI = 2
CHECKPOINT = 64  # kCheckpoint in native/scan.h

IO = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}

_ARGS = struct.Struct("@54qd")  # EattnArgs in native/args.h
_NO_VIEW = (0, 0, 0, 0)


def _load() -> tuple[ctypes.CDLL | None, str | None]:
    """The library, or why there is none."""
    if not LIBRARY.exists():
        return None, "the kernels were not compiled when eattn was installed (no C++ compiler?)"
    try:
        library = ctypes.CDLL(str(LIBRARY))
        abi = library.eattn_abi()
    except (OSError, AttributeError) as error:
        return None, f"the compiled kernels cannot be loaded: {error}"
    if abi != ABI:
        return None, "the compiled kernels are of another version: install eattn again"
    library.eattn_isa_name.restype = ctypes.c_char_p
    library.eattn_compiler.restype = ctypes.c_char_p
    for function in (library.eattn_forward, library.eattn_backward):
        function.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_int)
        function.restype = None
    return library, None


def _find_isas() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    while _library and (name := _library.eattn_isa_name(len(found))) is not None:
        runs = _library.eattn_isa_runs(len(found))
        found[name.decode()] = None if runs else f"this CPU has no {name.decode()}"
    return found


_library, _why_not = _load()

# Instruction sets the kernels were built for, fastest first: None, or why not on this CPU.
ISAS = _find_isas()
_INDEX = {isa: i for i, isa in enumerate(ISAS)}
_USABLE = [isa for isa, why in ISAS.items() if why is None]
_VECTOR_BYTES = {"avx512": 64, "avx2": 32, "baseline": 16}


def _fastest(D: int, wide: bool) -> str:
    """The widest vectors of which D channels fill more than half."""
    bytes_of_channels = D * (8 if wide else 4)
    filled = (isa for isa in _USABLE if 2 * bytes_of_channels > _VECTOR_BYTES[isa])
    return next(filled, _USABLE[-1])


def unavailable(isa: str | None = None) -> str | None:
    """Why the kernels (of one ISA, or the fastest) cannot run here; None when they can."""
    if _why_not is not None or isa is None:
        return _why_not
    return ISAS.get(isa, f"the kernels were not built for {isa}")


def describe() -> str:
    """How the library was built, for `eattn info`."""
    if _library is None:
        return str(_why_not)
    threads = "OpenMP" if _library.eattn_openmp() else "one thread: built without OpenMP"
    usable = ", ".join(isa for isa, why in ISAS.items() if why is None)
    return f"{usable}; {threads}; compiler {_library.eattn_compiler().decode()}"


def saved_shape(q: Tensor, cu_seqlens: Tensor | None, terms: int) -> tuple[int, ...]:
    """Of the checkpoints [slots, 2N + 1, D] that a causal forward keeps for its backward."""
    B, L, D = q.shape
    if cu_seqlens is None:
        slots = B * ((L + CHECKPOINT - 1) // CHECKPOINT)
    else:
        slots = L // CHECKPOINT + cu_seqlens.shape[0]
    return slots, 2 * terms + 1, D


def _view(x: Tensor) -> tuple[int, ...]:
    return x.data_ptr(), *x.stride()


def _call(function: str, isa: str | None, wide: bool, D: int, *fields: int | float) -> None:
    if _library is None:
        raise RuntimeError(_why_not)
    index = _INDEX[isa or _fastest(D, wide)]
    getattr(_library, function)(_ARGS.pack(*fields), index, wide)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    s: Tensor | None,
    z: Tensor | None,
    shift: Tensor | None,
    *,
    expansion: Expansion,
    causal: bool,
    save: bool,
    isa: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """y, the final s, z, shift, and with `save` what `backward` needs."""
    B, Lq, D = q.shape
    dtype = q.dtype
    wide = dtype == torch.float64 or (s is not None and s.dtype == torch.float64)
    real = torch.float64 if wide else torch.float32
    rows = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    y = torch.empty((B, Lq, D), dtype=dtype)
    s1, z1 = (empty_sums(rows, D, expansion.terms, real, None) for _ in range(2))
    m1 = torch.empty((rows, D), dtype=real)
    saved = None
    if save:
        # Packed sequences leave some slots out: no output may hold what happened to be in memory.
        fresh = torch.empty if cu_seqlens is None else torch.zeros
        saved = fresh(saved_shape(q, cu_seqlens, expansion.terms) if causal else 0, dtype=real)
    # Each tensor made here must outlive the call, hence the names.
    initial = None
    if s is not None and z is not None and shift is not None:
        initial = laid_out(s, real), laid_out(z, real), dense(shift, real)
    mask = None if key_mask is None else dense(key_mask, torch.bool)
    cu = None if cu_seqlens is None else dense(cu_seqlens, torch.int64)
    _call(
        "eattn_forward",
        isa,
        wide,
        D,
        *_view(q),
        *_view(k),
        *_view(v),
        *_view(y),
        *_NO_VIEW,
        *_NO_VIEW,
        *_NO_VIEW,
        *_NO_VIEW,
        0 if mask is None else mask.data_ptr(),
        0 if cu is None else cu.data_ptr(),
        *((0, 0, 0) if initial is None else (x.data_ptr() for x in initial)),
        s1.data_ptr(),
        z1.data_ptr(),
        m1.data_ptr(),
        *(0, 0, 0, 0),
        0 if saved is None else saved.data_ptr(),
        *(B, Lq, k.shape[1], D, rows),
        *(expansion.terms, causal, IO[dtype], torch.get_num_threads()),
        expansion.radius,
    )
    return y, s1, z1, m1, saved


def backward(
    gy: Tensor,
    gs: Tensor | None,
    gz: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    s: Tensor | None,
    z: Tensor | None,
    shift: Tensor | None,
    final_s: Tensor,
    final_z: Tensor,
    final_shift: Tensor,
    saved: Tensor,
    *,
    expansion: Expansion,
    causal: bool,
    isa: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of q, k, v and of the initial s, z (None without one)."""
    B, Lq, D = q.shape
    real, dtype = final_s.dtype, q.dtype
    rows = final_s.shape[0]
    dq = torch.empty(q.shape, dtype=dtype)
    dk, dv = torch.empty(k.shape, dtype=dtype), torch.empty(k.shape, dtype=dtype)
    ds = dz = m0 = None
    if s is not None and shift is not None:
        ds, dz = (empty_sums(rows, D, expansion.terms, real, None) for _ in range(2))
        m0 = dense(shift, real)
    gradients = None
    if gs is not None and gz is not None:
        gradients = laid_out(gs, real), laid_out(gz, real)
    final = laid_out(final_s, real), laid_out(final_z, real), final_shift.contiguous()
    mask = None if key_mask is None else dense(key_mask, torch.bool)
    cu = None if cu_seqlens is None else dense(cu_seqlens, torch.int64)
    _call(
        "eattn_backward",
        isa,
        real == torch.float64,
        D,
        *_view(q),
        *_view(k),
        *_view(v),
        *_NO_VIEW,
        *_view(gy),
        *_view(dq),
        *_view(dk),
        *_view(dv),
        0 if mask is None else mask.data_ptr(),
        0 if cu is None else cu.data_ptr(),
        *(0, 0, 0 if m0 is None else m0.data_ptr()),
        *(x.data_ptr() for x in final),
        *((0, 0) if gradients is None else (x.data_ptr() for x in gradients)),
        *((0, 0) if ds is None or dz is None else (ds.data_ptr(), dz.data_ptr())),
        saved.data_ptr(),
        *(B, Lq, k.shape[1], D, rows),
        *(expansion.terms, causal, IO[dtype], torch.get_num_threads()),
        expansion.radius,
    )
    return dq, dk, dv, ds, dz
