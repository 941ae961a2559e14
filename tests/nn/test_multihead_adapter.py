"""Models written for `nn.MultiheadAttention` run with any mixer."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from eattn.nn import ElementwiseAttention, MultiheadAdapter, make_mixer, replace_attention

PADDED = torch.arange(30) >= torch.tensor([[30], [20]])  # True for padding, as in PyTorch


def encoder(*, batch_first: bool = True, norm_first: bool = False) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        32, 4, 64, dropout=0.0, batch_first=batch_first, norm_first=norm_first
    )
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first and not norm_first)


def tokens() -> torch.Tensor:
    return torch.randn(2, 30, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("mixer", ["ea-6", "ea-q65r16", "ea", "la", "gru"])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_padding_does_not_change_encoder_output(mixer, training, grad):
    """PyTorch has a fused path for inference, which must not be taken."""
    model = encoder()
    assert replace_attention(model, mixer) == 2
    model.train(training)
    x = tokens()
    with torch.set_grad_enabled(grad):
        y = model(x, src_key_padding_mask=PADDED)
        assert_close(y[0], model(x[:1])[0])
        assert_close(y[1, :20], model(x[1:, :20])[0])


@pytest.mark.parametrize("norm_first", [True, False])
def test_sequence_first_layout_gives_same_output(norm_first):
    first = encoder(norm_first=norm_first)
    second = encoder(batch_first=False, norm_first=norm_first)
    for model in (first, second):
        replace_attention(model)
    second.load_state_dict(first.state_dict())
    y = second(tokens().transpose(0, 1), src_key_padding_mask=PADDED).transpose(0, 1)
    assert_close(y, first(tokens(), src_key_padding_mask=PADDED))


def own_choice(name, old):
    return ElementwiseAttention(32, causal=name.endswith("self_attn"))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        dict(mixer=own_choice),
        dict(mixer="ea", causal=True),
        dict(mixer="ea-6+gate", causal=True),
    ],
)
def test_decoder_uses_causal_and_cross_attention(options, batch_first):
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(32, 4, dropout=0.0, batch_first=batch_first)
    model = nn.TransformerDecoder(layer, 2)
    assert replace_attention(model, **options) == 4
    mask = nn.Transformer.generate_square_subsequent_mask(30)

    def run(x, memory, **masks):
        swap = (lambda x: x) if batch_first else (lambda x: x.transpose(0, 1))
        return swap(model(swap(x), swap(memory), tgt_mask=mask, **masks))

    memory, x = tokens()[:, :7], tokens()
    y = run(x, memory, memory_key_padding_mask=PADDED[:, 13:20])
    assert_close(y, run(x, memory, tgt_is_causal=True))
    changed = x.clone()
    changed[:, 20:] = 7.0
    assert_close(run(changed, memory)[:, :20], y[:, :20])
    assert not torch.equal(run(x, memory + 1.0), y)


@pytest.mark.parametrize("mixer", ["ea-6", "sa"])
def test_causal_encoder_ignores_later_tokens(mixer):
    model, x = encoder(), tokens()
    replace_attention(model, mixer, causal=True)
    assert getattr(model.layers[0].self_attn.mixer, "heads", 4) == 4
    mask = torch.ones(30, 30, dtype=torch.bool).triu(1)
    y = model(x, mask=mask, is_causal=True, src_key_padding_mask=PADDED)
    assert_close(model(x[:, :20], mask=mask[:20, :20]), y[:, :20])


@pytest.mark.parametrize("mixer", ["ea-6", "ea-6+decay"])
def test_causal_transformer_keeps_full_encoder(mixer):
    model = nn.Transformer(32, 4, 1, 1, 64, dropout=0.0, batch_first=True)
    assert replace_attention(model, mixer, causal=True) == 3
    found = {n: m for n, m in model.named_modules() if isinstance(m, ElementwiseAttention)}
    alone = ["decoder.layers.0.self_attn.mixer"]
    assert [name for name, layer in found.items() if layer.causal] == alone
    decays = [name for name, layer in found.items() if layer.decay is not None]
    assert decays == (alone if "decay" in mixer else [])
    mask = nn.Transformer.generate_square_subsequent_mask(30)
    assert model(tokens(), tokens(), tgt_mask=mask).isfinite().all()


def test_replacement_keeps_dtype_mode_and_excluded_layers():
    model = encoder().double().eval()
    kept = model.layers[1].self_attn
    count = replace_attention(
        model, lambda name, old: make_mixer("la", 32) if name.startswith("layers.0") else None
    )
    assert count == 1
    assert model.layers[1].self_attn is kept
    new = model.layers[0].self_attn
    assert not new.mixer.training
    assert next(new.parameters()).dtype == torch.float64


def test_new_weights_get_gradients():
    model = encoder()
    replace_attention(model)
    model(tokens()).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.layers[0].self_attn.parameters())


def test_unsupported_arguments_raise():
    x, other = tokens(), tokens()
    full, causal = (
        MultiheadAdapter(ElementwiseAttention(32, causal=causal)) for causal in (False, True)
    )
    mask = nn.Transformer.generate_square_subsequent_mask(30)
    with pytest.raises(
        ValueError, match="attn_mask and is_causal need a mixer built with causal=True"
    ):
        full(x, x, x, attn_mask=mask)
    with pytest.raises(ValueError, match="attn_mask must be the causal mask"):
        causal(x, x, x, attn_mask=torch.zeros(30, 30))
    with pytest.raises(ValueError, match="value must be key"):
        full(x, x, x + 1)
    with pytest.raises(ValueError, match="has no cross-attention"):
        MultiheadAdapter(make_mixer("la", 32))(x, other, other)
    with pytest.raises(TypeError, match="mixer must be"):
        MultiheadAdapter(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="cannot replace itself: use MultiheadAdapter"):
        replace_attention(nn.MultiheadAttention(32, 4))
    with pytest.raises(ValueError, match="causal=True needs the name of a mixer"):
        replace_attention(encoder(), own_choice, causal=True)
    with pytest.raises(ValueError, match="0 must have kdim = vdim = embed_dim = 32"):
        replace_attention(nn.Sequential(nn.MultiheadAttention(32, 4, kdim=8, vdim=8)))
    with pytest.raises(ValueError, match="unknown mixer 'ea6'"):
        replace_attention(encoder(), "ea6")
