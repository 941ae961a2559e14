"""Invalid calls of a mixer raise an error that names the argument and what is allowed."""

import re

import pytest
import torch
from mixer_helpers import CAUSAL_ONLY, CONVOLVED, HEADED, NAMES, SERIES, both_forms, fresh, names

from eattn.nn import MIXERS, Mixer, check_mixer, make_mixer

X = torch.zeros(2, 5, 12)
ONE = X[:1]
MASK = torch.ones(2, 5, dtype=torch.bool)
CU, FALLING = torch.tensor([0, 2, 5]), torch.tensor([0, 4, 2, 5])

# Invalid calls of any mixer: the call, the type of the error, and a part of its message
CALLS = [
    (lambda m: m(X[..., :11]), ValueError, "x must be [B, L, D] with D = dim = 12"),
    (lambda m: m(X[0]), ValueError, "x must be [B, L, D]"),
    (lambda m: m(X.view(2, 5, 3, 4)), ValueError, "x must be [B, L, D]"),
    (lambda m: m(X.long()), TypeError, "x must be a floating-point tensor"),
    (lambda m: m(X.cfloat()), TypeError, "x must be a floating-point tensor"),
    (lambda m: m([[[0.0] * 12]]), TypeError, "x must be a floating-point tensor"),
    (lambda m: m(None), TypeError, "x must be a floating-point tensor, got NoneType"),
    (lambda m: m(X, key_mask=MASK[:, 1:]), ValueError, "key_mask must be [B, Lk]"),
    (lambda m: m(X, key_mask=MASK[:1]), ValueError, "key_mask must be [B, Lk]"),
    (lambda m: m(X, key_mask=MASK.unsqueeze(2)), ValueError, "key_mask must be [B, Lk]"),
    (lambda m: m(X, key_mask=MASK.float()), TypeError, "key_mask must be a bool"),
    (lambda m: m(X, key_mask=[[True] * 5] * 2), TypeError, "key_mask must be a bool"),
    (lambda m: m(X, X), TypeError, "takes 2 positional arguments but 3 were given"),
    (lambda m: m(X, cu_seqlens=CU), ValueError, "cu_seqlens packs sequences along L and needs B"),
    (lambda m: m(ONE, cu_seqlens=CU[:2]), ValueError, "cu_seqlens must run from 0 to L = 5"),
    (lambda m: m(ONE, cu_seqlens=FALLING), ValueError, "cu_seqlens must not decrease"),
    (lambda m: m(ONE, cu_seqlens=CU.float()), TypeError, "cu_seqlens must be an int32 or int64"),
    (lambda m: m(ONE, cu_seqlens=[0, 5]), TypeError, "cu_seqlens must be an int32 or int64"),
]
STEPS = [
    (lambda m: m.step(X), ValueError, "x_t must be [B, D] with D = dim = 12"),
    (lambda m: m.step(X[0, 0]), ValueError, "x_t must be [B, D]"),
    (lambda m: m.step(X[:, 0, 1:]), ValueError, "x_t must be [B, D]"),
    (lambda m: m.step(X[:, 0].long()), TypeError, "x_t must be a floating-point"),
]


def raises(error: type[Exception], text: str):
    return pytest.raises(error, match=re.escape(text))


def mixer(name: str, *, causal: bool, dim: int = 12, heads: int = 3) -> Mixer:
    return fresh(name, dim, heads=heads, causal=causal)


@both_forms
def test_invalid_input_raises(name, causal):
    made = mixer(name, causal=causal)
    for call, error, text in CALLS + STEPS if causal else CALLS:
        with raises(error, text):
            call(made)
    if not causal:
        with raises(ValueError, "step needs causal=True"):
            made.step(X[:, 0])


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SERIES])
def test_non_causal_and_packed_calls_take_no_state(name):
    """EA-series is the exception: it reads from a state."""
    causal = mixer(name, causal=True)
    _, state = causal(ONE, return_state=True)
    if name not in CAUSAL_ONLY:
        full = mixer(name, causal=False)
        with raises(ValueError, "return_state needs causal=True"):
            full(ONE, return_state=True)
        with raises(ValueError, "state needs causal=True"):
            full(ONE, state=state)
    for options in ({"state": state}, {"return_state": True}):
        with raises(ValueError, "cu_seqlens cannot be combined with"):
            causal(ONE, cu_seqlens=CU, **options)


@names
def test_state_of_another_mixer_raises(name):
    causal = mixer(name, causal=True)
    own = type(causal.step(X[:, 0])[1])
    donors = ("ea-6", "sa", "la", "deltanet", "gru")  # one of each kind of state
    others = [mixer(donor, causal=True).step(X[:, 0])[1] for donor in donors]
    wrong = [state for state in others if not isinstance(state, own)]
    assert len(wrong) == (5 if name in CONVOLVED else 4)
    for state in (*wrong, X, 7, (X, X, X)):
        with pytest.raises(TypeError, match=r"state must be an? .*, got"):
            causal.step(X[:, 0], state)
        with pytest.raises(TypeError, match=r"state must be an? .*, got"):
            causal(X, state=state)


def states_of_wrong_shape(name: str) -> dict[str, object]:
    """Return states with another number of rows, channels or heads, or with another order."""
    token = torch.zeros(2, 24)
    wrong = {
        "fewer rows": mixer(name, causal=True).step(X[:1, 0])[1],
        "more rows": mixer(name, causal=True).step(X[:, 0].repeat(2, 1))[1],
        "a wider dim": mixer(name, causal=True, dim=24).step(token)[1],
    }
    if name in HEADED:
        wrong["other heads"] = mixer(name, causal=True, heads=6).step(X[:, 0])[1]
    if name in SERIES:
        other = "ea-4" if name != "ea-4" else "ea-2"
        wrong["another order"] = mixer(other, causal=True).step(X[:, 0])[1]
    if name in ("ea", "aft"):
        wrong["heads"] = mixer("sa", causal=True).step(X[:, 0])[1]
    return wrong


@names
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_state_of_wrong_shape_raises(name, grad):
    causal = mixer(name, causal=True)
    for state in states_of_wrong_shape(name).values():
        with torch.set_grad_enabled(grad):
            with pytest.raises(ValueError, match="state"):
                causal.step(X[:, 0], state)
            with pytest.raises(ValueError, match="state"):
                causal(X, state=state)


UNKNOWN = ["", "EA", "ea6", "ea-", "ea-x", "ea--2", "ea-6 ", "ea-6.0", "sa-", "mha", "q+k+v"]
UNKNOWN += ["ea-6r3", "ea-q25r", "ea-q25r-1", "ea-q25rx", "ea-qr12"]


def test_error_for_unknown_name_lists_known_names():
    with raises(TypeError, "mixer must be a name, got int"):
        make_mixer(6, 12)
    for name in UNKNOWN:
        for make in (check_mixer, lambda name: make_mixer(name, 12)):
            with pytest.raises(ValueError, match=re.escape(f"unknown mixer {name!r}")) as raised:
                make(name)
            assert all(known in str(raised.value) for known in (*MIXERS, "ea-N"))


def test_invalid_order_raises():
    for name in ("ea-1", "ea-5", "ea-17", "ea-18", "ea-100", "ea-q4", "ea-q1027", "ea-q24r9"):
        text = f"needs an even N from 0 to 16, 'ea-qN' an odd N from 5 to 1025, got {name!r}"
        with raises(ValueError, text):
            make_mixer(name, 12)
    for name, radius in (("ea-q25r13", "13"), ("ea-q25r0", "0"), ("ea-q25r12.5", "12.5")):
        text = f"mixer {name!r}: radius must be above 0 and at most 12 for 25 nodes, got {radius}"
        with raises(ValueError, text):
            make_mixer(name + "+norm", 12)


def test_impossible_decay_raises():
    with raises(ValueError, "mixer 'ea+norm+gate': exact EA has no +gate; use an expansion"):
        make_mixer("ea+norm+gate", 12, causal=True)
    with raises(ValueError, "mixer 'ea-6+gate+decay': use only one of +decay and +gate"):
        make_mixer("ea-6+gate+decay", 12, causal=True)
    with raises(ValueError, "a model that attends to all tokens can use 'ea-q17+norm'"):
        make_mixer("ea-q17+decay+norm", 12)


SIZES = [
    ({"dim": 0}, ValueError, "dim must be at least 1, got 0"),
    ({"dim": 12.0}, TypeError, "dim must be an int, got float"),
    ({"dim": True}, TypeError, "dim must be an int, got bool"),
    ({"causal": 1}, TypeError, "causal must be a bool, got int"),
    ({"causal": None}, TypeError, "causal must be a bool, got NoneType"),
]
HEADS = [
    ({"heads": 5}, ValueError, "heads must divide dim = 12, got 5"),
    ({"heads": 0}, ValueError, "heads must be at least 1, got 0"),
    ({"heads": 3.0}, TypeError, "heads must be an int, got float"),
]


@names
def test_invalid_sizes_raise(name):
    for options, error, text in SIZES + (HEADS if name in HEADED else []):
        with raises(error, text):
            fresh(name, **{"dim": 12, "causal": True, **options})


def test_rotary_positions_need_even_heads():
    with raises(ValueError, "an even number of channels per head, got dim / heads = 12 / 4 = 3"):
        make_mixer("sa+rope", 12, heads=4)


@pytest.mark.parametrize("name", CAUSAL_ONLY)
def test_non_causal_form_of_causal_mixer_raises(name):
    kind = name.partition("~")[0]
    with raises(ValueError, f"mixer {kind!r} needs causal=True, got False; a model that attends"):
        mixer(name, causal=False)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in HEADED])
def test_mixers_without_heads_ignore_heads(name):
    made = fresh(name, 7, heads=5, causal=name in CAUSAL_ONLY)
    assert made(torch.zeros(1, 2, 7)).shape == (1, 2, 7)


@pytest.mark.parametrize("name", ["sa", "sa-math", "aft"])
@pytest.mark.parametrize(
    ("max_len", "error"), [(0, ValueError), (-1, ValueError), (2.5, TypeError), (True, TypeError)]
)
def test_invalid_max_len_raises(name, max_len, error):
    with raises(error, "max_len must be"):
        make_mixer(name, 12, heads=3, max_len=max_len)
