"""TransformerBlock: Post-LN and Pre-LN, every mixer, masks, states and configuration."""

import itertools
from dataclasses import FrozenInstanceError, replace
from typing import get_origin, get_overloads, get_type_hints

import pytest
import torch
import torch.nn.functional as F
from mixer_helpers import CAUSAL_ONLY, forms
from op_helpers import draw
from torch.testing import assert_close

from eattn.nn import MIXERS, Mixer, TransformerEncoder
from eattn.nn.block import TransformerBlock, TransformerConfig, TransformerOptions

mixers = pytest.mark.parametrize("mixer", MIXERS)
both_forms = pytest.mark.parametrize(("mixer", "causal"), forms(MIXERS))
norms = pytest.mark.parametrize("norm", ["post", "pre"])

# Padding on the right, on the left, in between, and in the entire row
MASK = torch.tensor(
    [[1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1], [1, 0, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0]],
    dtype=torch.bool,
)


def block_of(mixer: str = "ea-6", **changes) -> TransformerBlock:
    torch.manual_seed(0)
    return TransformerBlock(dim=8, heads=2, mixer=mixer, **changes).double()


@pytest.mark.parametrize(
    ("field", "value", "error", "message"),
    [
        ("dim", 0, ValueError, "dim must be at least 1, got 0"),
        ("dim", 8.0, TypeError, "dim must be an int, got float"),
        ("depth", -1, ValueError, "depth must be at least 1, got -1"),
        ("heads", True, TypeError, "heads must be an int, got bool"),
        ("ffn", 0, ValueError, "ffn must be at least 1, got 0"),
        ("max_len", 0, ValueError, "max_len must be at least 1, got 0"),
        ("short_conv", 0, ValueError, "short_conv must be at least 1, got 0"),
        (
            "mixer",
            "mamba",
            ValueError,
            "unknown mixer 'mamba': use one of ea, ea-2, ea-6, ea-q17",
        ),
        ("mixer", "ea-5", ValueError, "even N"),
        ("mixer", 6, TypeError, "mixer must be a name, got int"),
        ("causal", 1, TypeError, "causal must be a bool, got int"),
        ("norm", "rms", ValueError, "norm must be 'post' or 'pre', got 'rms'"),
        ("dropout", 1.0, ValueError, "dropout must be at least 0 and below 1, and finite, got 1.0"),
        ("dropout", -0.1, ValueError, "dropout must be at least 0"),
        (
            "dropout",
            float("nan"),
            ValueError,
            "dropout must be at least 0 and below 1, and finite, got nan",
        ),
        ("dropout", "0.1", TypeError, "dropout must be a number, got str"),
        ("eps", 0.0, ValueError, "eps must be above 0, and finite, got 0.0"),
    ],
)
def test_invalid_field_raises(field, value, error, message):
    with pytest.raises(error, match=message):
        TransformerConfig(**{field: value})


def test_unknown_field_or_config_of_wrong_type_raises():
    for make in (TransformerBlock, TransformerConfig.bert_base):
        with pytest.raises(TypeError, match=r"unknown option 'width'.*dim, depth, mixer, heads"):
            make(width=8)
    with pytest.raises(TypeError, match="config must be a TransformerConfig, got int"):
        TransformerBlock(128)


def test_keywords_take_precedence_over_config():
    config = TransformerConfig(dim=16, mixer="la", norm="pre")
    made = TransformerBlock(config, mixer="sa").config
    assert made == TransformerConfig(dim=16, mixer="sa", norm="pre")
    assert TransformerBlock().config == TransformerConfig()


def test_config_is_frozen_and_ffn_follows_dim():
    config = TransformerConfig(dim=16)
    with pytest.raises(FrozenInstanceError):
        config.dim = 32
    assert config.ffn_dim == 64
    assert replace(config, dim=32).ffn_dim == 128
    assert replace(config, ffn=5).ffn_dim == 5


def test_bert_base_has_the_sizes_of_bert():
    config = TransformerConfig.bert_base()
    assert (config.dim, config.depth, config.heads, config.ffn_dim) == (768, 12, 12, 3072)
    assert (config.norm, config.dropout, config.max_len, config.eps) == ("post", 0.1, 512, 1e-12)
    assert TransformerConfig.bert_base(mixer="sa", depth=2) == replace(config, mixer="sa", depth=2)


def test_heads_must_divide_dim_if_mixer_has_heads():
    with pytest.raises(ValueError, match="heads must divide dim = 10, got 8"):
        TransformerBlock(dim=10, mixer="sa")
    assert TransformerBlock(dim=10, mixer="ea-6")(torch.randn(1, 3, 10)).shape == (1, 3, 10)


def ffn(block: TransformerBlock, x: torch.Tensor) -> torch.Tensor:
    up, _, down = block.ffn
    return F.gelu(x @ up.weight.T + up.bias) @ down.weight.T + down.bias


def layer_norm(norm: torch.nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
    x = x - x.mean(-1, keepdim=True)
    x = x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return x * norm.weight + norm.bias


def perturbed(block: TransformerBlock) -> TransformerBlock:
    """No parameter at a value, such as 0 or 1, that would hide its absence."""
    with torch.no_grad():
        for i, parameter in enumerate(block.parameters()):
            parameter += 0.1 * draw(*parameter.shape, seed=i)
    return block


@both_forms
def test_norms_are_before_branches_or_after_residuals(mixer, causal):
    x = draw(2, 7, 8, seed=0)
    block = perturbed(block_of(mixer, causal=causal, norm="post"))
    y = layer_norm(block.norm_mixer, x + block.mixer(x))
    assert_close(block(x), layer_norm(block.norm_ffn, y + ffn(block, y)))
    block = perturbed(block_of(mixer, causal=causal, norm="pre"))
    y = x + block.mixer(layer_norm(block.norm_mixer, x))
    assert_close(block(x), y + ffn(block, layer_norm(block.norm_ffn, y)))


class Nothing(torch.nn.Module):
    """Dropout that drops everything."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)


@norms
def test_dropout_applies_to_output_of_both_branches(norm):
    block, x = perturbed(block_of(norm=norm)), draw(2, 7, 8, seed=0)
    block.dropout = Nothing()
    assert_close(block(x), x if norm == "pre" else block.norm_ffn(block.norm_mixer(x)))


def test_dropout_applies_only_in_training():
    block, x = block_of(dropout=0.5), draw(2, 7, 8, seed=0)
    assert not torch.equal(block(x), block(x))
    block.eval()
    without = block_of()
    without.load_state_dict(block.state_dict())
    assert torch.equal(block(x), without(x))


@both_forms
def test_every_parameter_gets_a_gradient(mixer, causal):
    norm = "pre" if causal else "post"
    block = perturbed(block_of(mixer, causal=causal, norm=norm, max_len=7))
    block(draw(2, 7, 8, seed=0)).pow(3).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in block.parameters())


@norms
@mixers
def test_masked_nan_changes_neither_values_nor_gradients(mixer, norm):
    causal = norm == "pre" or mixer in CAUSAL_ONLY
    block, x = block_of(mixer, causal=causal, norm=norm), draw(4, 6, 8, seed=0)

    def run(fill: float) -> list[torch.Tensor]:
        inputs = x.masked_fill(~MASK.unsqueeze(-1), fill).requires_grad_()
        y = block(inputs, key_mask=MASK)
        assert y.isfinite().all()
        grads = torch.autograd.grad(y[MASK].pow(3).sum(), [inputs, *block.parameters()])
        assert not grads[0][~MASK].any()
        return [y[MASK], *grads]

    clean = run(0.0)
    assert all(torch.equal(a, b) for a, b in zip(clean, run(torch.nan), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(clean, run(torch.inf), strict=True))


@mixers
def test_packed_sequences_are_independent(mixer):
    block, x = block_of(mixer, causal=True, norm="pre"), draw(1, 9, 8, seed=0)
    offsets = [0, 4, 5, 9]
    alone = [block(x[:, a:b]) for a, b in itertools.pairwise(offsets)]
    packed = block(x, cu_seqlens=torch.tensor(offsets, dtype=torch.int32))
    assert_close(packed, torch.cat(alone, 1))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda b, x: b(x[..., :7]), ValueError, "x must be .* with D = dim = 8"),
        (lambda b, x: b(x[0]), ValueError, "x must be"),
        (lambda b, x: b(x.long()), TypeError, "x must be a floating-point tensor"),
        (lambda b, x: b.step(x), ValueError, r"x_t must be \[B, D\]"),
        (lambda b, x: b(x, key_mask=MASK), ValueError, "key_mask must be"),
        (lambda b, x: b(x, key_mask=torch.ones(2, 7)), TypeError, "key_mask must be a bool"),
    ],
)
@norms
def test_invalid_input_raises(call, error, message, norm):
    with pytest.raises(error, match=message):
        call(block_of(causal=True, norm=norm), draw(2, 7, 8, seed=0))


def test_keyword_arguments_have_the_types_of_the_configuration():
    assert get_type_hints(TransformerOptions) == get_type_hints(TransformerConfig)


@pytest.mark.parametrize("cls", [Mixer, TransformerBlock, TransformerEncoder])
def test_type_of_result_depends_on_return_state(cls):
    plain, with_state = (get_type_hints(f)["return"] for f in get_overloads(cls.forward))
    assert plain is torch.Tensor and get_origin(with_state) is tuple
