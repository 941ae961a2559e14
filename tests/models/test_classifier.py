"""SequenceClassifier: padding has no effect, with any pooling, embedding and mixer."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from mixer_helpers import CAUSAL_ONLY
from op_helpers import draw, padded
from torch.testing import assert_close

from eattn.models import SequenceClassifier
from eattn.models.classifier import POOLINGS
from eattn.nn import MIXERS

poolings = pytest.mark.parametrize("pooling", POOLINGS)
embeds = pytest.mark.parametrize("embed", ["linear", "conv"])

LENGTHS = torch.tensor([[9], [4], [1]])
RIGHT = torch.arange(9) < LENGTHS
LEFT = RIGHT.flip(1)
FIELDS = ("hour", "weekday")
# Every mixer with one pooling and embedding, and EA with all of them
VARIANTS = [
    *((m, POOLINGS[i % 4], ("linear", "conv")[i // 4 % 2]) for i, m in enumerate(MIXERS)),
    *itertools.product(["ea-6"], POOLINGS, ["linear", "conv"]),
]


def model_of(mixer: str = "ea-6", **options) -> SequenceClassifier:
    torch.manual_seed(0)
    causal = mixer in CAUSAL_ONLY
    options = dict(dim=8, depth=2, heads=2, max_len=12, causal=causal) | options
    return SequenceClassifier(3, 4, mixer=mixer, **options).double()


def some_times(B: int, L: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.randint(0, 7, (B, L, 2), generator=rng)


def alone(model: SequenceClassifier, x: torch.Tensor, times=None) -> torch.Tensor:
    rows = []
    for b, n in enumerate(LENGTHS.flatten().tolist()):
        calendar = None if times is None else times[b : b + 1, :n]
        rows.append(model(x[b : b + 1, :n], calendar=calendar))
    return torch.cat(rows)


@poolings
@embeds
@pytest.mark.parametrize(("patch", "mask"), [(2, RIGHT), (4, LEFT), (12, LEFT)])
def test_patches_use_all_samples_and_no_padding(pooling, embed, mask, patch):
    model, x = model_of(pooling=pooling, embed=embed, patch=patch), draw(3, 9, 3, seed=0)
    logits = model(padded(x, mask, torch.nan), key_mask=mask)
    assert_close(logits, alone(model, x))
    for sample in range(9):  # every sample affects the logits
        changed = x.clone()
        changed[0, sample] += 1.0
        if pooling != "max":
            assert not torch.equal(alone(model, changed)[0], logits[0])


def test_patch_is_one_token_of_its_samples():
    model = model_of(patch=3)
    plain = SequenceClassifier(9, 4, mixer="ea-6", dim=8, depth=2, heads=2, max_len=4).double()
    plain.load_state_dict(model.state_dict())
    x = draw(3, 9, 3, seed=0)
    assert_close(model(x), plain(x.reshape(3, 3, 9)))


@pytest.mark.parametrize(("mixer", "pooling", "embed"), VARIANTS)
def test_padding_changes_neither_logits_nor_gradients(mixer, pooling, embed):
    model, x = model_of(mixer, pooling=pooling, embed=embed), draw(3, 9, 3, seed=0)

    def with_gradients(y: torch.Tensor) -> list[torch.Tensor]:
        # allow_unused: the positions of aft have no effect if a row has one token.
        grads = torch.autograd.grad(y.pow(3).sum(), list(model.parameters()), allow_unused=True)
        return [y, *(g for g in grads if g is not None)]

    want = with_gradients(alone(model, x))
    for mask in (RIGHT, LEFT):
        got = model(padded(x, mask, torch.nan), key_mask=mask)
        assert_close(with_gradients(got), want)


@poolings
@embeds
def test_masked_gap_is_skipped(pooling, embed):
    model, x = model_of(pooling=pooling, embed=embed), draw(1, 9, 3, seed=0)
    kept = [0, 1, 4, 5, 8]
    mask = torch.zeros(1, 9, dtype=torch.bool)
    mask[0, kept] = True
    assert_close(model(x, key_mask=mask), model(x[:, kept]))


@pytest.mark.parametrize("mask", [RIGHT, LEFT], ids=["right", "left"])
def test_masked_times_are_ignored(mask):
    model, x, times = model_of(calendar=FIELDS), draw(3, 9, 3, seed=0), some_times(3, 9)
    masked = padded(times, mask, -99)
    assert_close(model(padded(x, mask, torch.nan), mask, masked), alone(model, x, times))


@pytest.mark.parametrize(("mixer", "pooling", "embed"), VARIANTS)
def test_row_without_tokens_gives_bias_of_head(mixer, pooling, embed):
    model, x = model_of(mixer, pooling=pooling, embed=embed), draw(2, 9, 3, seed=0)
    mask = torch.tensor([[True], [False]]).expand(2, 9)
    y = model(x.masked_fill(~mask.unsqueeze(-1), torch.nan), key_mask=mask)
    assert_close(y[1], model.head.bias)
    assert_close(y[:1], model(x[:1]))
    y.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def encoded(model: SequenceClassifier, x: torch.Tensor) -> torch.Tensor:
    return model.encoder(model.embed.positions(model.embed.values(x)))


@pytest.mark.parametrize(
    ("pooling", "formula"),
    [
        ("mean", lambda y: y.mean(1)),
        ("max", lambda y: y.max(1).values),
        ("last", lambda y: y[:, -1]),
        ("flatten", lambda y: torch.cat([F.gelu(y).flatten(1), y.new_zeros(3, 3 * 8)], 1)),
    ],
)
def test_pooling_matches_formula(pooling, formula):
    model, x = model_of(pooling=pooling), draw(3, 9, 3, seed=0)
    assert_close(model(x), model.head(formula(encoded(model, x))))


@pytest.mark.parametrize(
    ("mixer", "pooling"),  # not "last", which does not depend on all parameters
    [*((m, "mean") for m in MIXERS), ("ea-6", "max"), ("ea-6", "flatten")],
)
def test_every_parameter_gets_a_gradient(mixer, pooling):
    model, x = model_of(mixer, pooling=pooling, max_len=9, norm="pre"), draw(3, 9, 3, seed=0)
    model(x).pow(3).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


def test_positions_are_optional():
    model, x = model_of(positions=False), draw(2, 9, 3, seed=0)
    assert_close(model(x), model(x.flip(1)))  # EA treats tokens as a set
    assert not torch.allclose(model_of()(x), model_of()(x.flip(1)))
    assert model(draw(1, 700, 3, seed=0)).isfinite().all()


def test_causal_classifier_ignores_later_tokens():
    model, x = model_of(causal=True, pooling="last"), draw(1, 9, 3, seed=0)
    mask = torch.arange(9).unsqueeze(0) < 5
    assert_close(model(x, key_mask=mask), model(x[:, :5]))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m, x: m(x[..., :2]), ValueError, r"x must be \[B, L, 3\].*channels = 3, got.*2\)"),
        (lambda m, x: m(x[0]), ValueError, "x must be"),
        (lambda m, x: m(x[:, :0]), ValueError, "L >= 1"),
        (lambda m, x: m(x.long()), TypeError, "x must be a floating-point tensor, got torch.int64"),
        (lambda m, x: m(x, RIGHT[:, :5]), ValueError, "key_mask must be"),
        (lambda m, x: m(x, RIGHT.float()), TypeError, "key_mask must be a bool tensor"),
        (
            lambda m, x: m(x, calendar=some_times(3, 9)),
            ValueError,
            "a model without calendar fields",
        ),
        (lambda m, x: m(torch.cat([x, x], 1)), ValueError, "L = 18 .*max_len = 12"),
    ],
)
@pytest.mark.parametrize("pooling", ["mean", "flatten"])
def test_invalid_input_raises(call, error, message, pooling):
    with pytest.raises(error, match=message):
        call(model_of(pooling=pooling), draw(3, 9, 3, seed=0))


def test_missing_or_misshapen_calendar_raises():
    model, x = model_of(calendar=FIELDS), draw(3, 9, 3, seed=0)
    with pytest.raises(ValueError, match="calendar is missing: this model reads hour, weekday"):
        model(x)
    with pytest.raises(ValueError, match=r"calendar must be \[3, 9, 2\] for hour, weekday"):
        model(x, calendar=some_times(3, 8))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(pooling="sum"), ValueError, "pooling must be one of mean, max, last, flatten"),
        (dict(pooling="flatten", max_len=None), ValueError, "pooling='flatten' needs max_len"),
        (dict(embed="patch"), ValueError, "embed must be one of linear, conv, got 'patch'"),
        (dict(calendar=("year",)), ValueError, "fields must be among"),
        (dict(positions=1), TypeError, "positions must be a bool"),
        (dict(width=3), TypeError, "unknown option 'width'"),
    ],
)
def test_invalid_options_raise(options, error, message):
    with pytest.raises(error, match=message):
        model_of(**options)
    with pytest.raises(ValueError, match="classes must be at least 1, got 0"):
        SequenceClassifier(3, 0)


@poolings
def test_model_survives_state_dict_and_deepcopy(pooling):
    model, x = model_of(pooling=pooling, embed="conv"), draw(3, 9, 3, seed=0)
    other = SequenceClassifier(3, 4, model.config, pooling=pooling, embed="conv").double()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x, RIGHT), model(x, RIGHT))
    assert torch.equal(copy.deepcopy(model)(x, RIGHT), model(x, RIGHT))


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "flatten"])
def test_compiled_classifier_gives_same_values_and_gradients(pooling):
    model, x = model_of(pooling=pooling, embed="conv"), draw(3, 9, 3, seed=0)
    y, expected = torch.compile(model, backend="aot_eager")(x, LEFT), model(x, LEFT)
    assert_close(y, expected)
    grads = (torch.autograd.grad(z.pow(3).sum(), list(model.parameters())) for z in (y, expected))
    assert_close(*grads)


@pytest.mark.slow
def test_exported_classifier_takes_any_batch_and_length():
    model, sizes = (
        model_of(embed="conv"),
        {0: torch.export.Dim("B"), 1: torch.export.Dim("L", max=12)},
    )
    program = torch.export.export(
        model, (draw(3, 9, 3, seed=0), RIGHT), dynamic_shapes=(sizes, sizes)
    )
    x, mask = draw(5, 11, 3, seed=1), draw(5, 11, seed=2) > 0
    assert_close(program.module()(x, mask), model(x, mask))
