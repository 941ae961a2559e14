"""Models written for `nn.MultiheadAttention` run on any mixer, unchanged."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from eattn.nn import ElementwiseAttention, MultiheadAdapter, make_mixer, replace_attention

PADDED = torch.arange(30) >= torch.tensor([[30], [20]])  # True: padding, as PyTorch has it


def encoder(*, batch_first: bool = True, norm_first: bool = False) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        32, 4, 64, dropout=0.0, batch_first=batch_first, norm_first=norm_first
    )
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first and not norm_first)


def tokens() -> torch.Tensor:
    return torch.randn(2, 30, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("mixer", ["ea-6", "ea", "la", "gru"])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_padding_changes_nothing_in_an_encoder(mixer, training, grad):
    """Also on the shortcuts PyTorch takes when it does not train."""
    model = encoder()
    assert replace_attention(model, mixer) == 2
    model.train(training)
    x = tokens()
    with torch.set_grad_enabled(grad):
        y = model(x, src_key_padding_mask=PADDED)
        assert_close(y[0], model(x[:1])[0])
        assert_close(y[1, :20], model(x[1:, :20])[0])


@pytest.mark.parametrize("norm_first", [True, False])
def test_time_may_come_first(norm_first):
    first = encoder(norm_first=norm_first)
    second = encoder(batch_first=False, norm_first=norm_first)
    for model in (first, second):
        replace_attention(model)
    second.load_state_dict(first.state_dict())
    y = second(tokens().transpose(0, 1), src_key_padding_mask=PADDED).transpose(0, 1)
    assert_close(y, first(tokens(), src_key_padding_mask=PADDED))


def test_a_decoder_takes_causal_self_attention_and_cross_attention():
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(32, 4, dropout=0.0, batch_first=True)
    replace_attention(layer, lambda name, old: ElementwiseAttention(32, causal=name == "self_attn"))
    memory, x = tokens()[:, :7], tokens()
    mask = nn.Transformer.generate_square_subsequent_mask(30)
    y = layer(x, memory, tgt_mask=mask, memory_key_padding_mask=PADDED[:, 13:20])
    assert_close(y, layer(x, memory, tgt_mask=mask, tgt_is_causal=True))
    changed = x.clone()
    changed[:, 20:] = 7.0
    assert_close(layer(changed, memory, tgt_mask=mask)[:, :20], y[:, :20])
    assert not torch.equal(layer(x, memory + 1.0, tgt_mask=mask), y)


def test_replaced_attention_keeps_dtype_and_mode_and_what_it_was_told_to_leave():
    model = encoder().double().eval()
    left = model.layers[1].self_attn
    count = replace_attention(
        model, lambda name, old: make_mixer("la", 32) if name.startswith("layers.0") else None
    )
    assert count == 1
    assert model.layers[1].self_attn is left
    new = model.layers[0].self_attn
    assert not new.mixer.training
    assert next(new.parameters()).dtype == torch.float64


def test_gradients_reach_the_new_weights():
    model = encoder()
    replace_attention(model)
    model(tokens()).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.layers[0].self_attn.parameters())


def test_what_cannot_be_honoured_is_refused():
    x, other = tokens(), tokens()
    full, causal = (
        MultiheadAdapter(ElementwiseAttention(32, causal=causal)) for causal in (False, True)
    )
    mask = nn.Transformer.generate_square_subsequent_mask(30)
    with pytest.raises(ValueError, match="attn_mask needs a mixer made with causal=True"):
        full(x, x, x, attn_mask=mask)
    with pytest.raises(ValueError, match="attn_mask must be the causal one"):
        causal(x, x, x, attn_mask=torch.zeros(30, 30))
    with pytest.raises(ValueError, match="value must be key"):
        full(x, x, x + 1)
    with pytest.raises(ValueError, match="has no cross-attention"):
        MultiheadAdapter(make_mixer("la", 32))(x, other, other)
    with pytest.raises(TypeError, match="mixer must be"):
        MultiheadAdapter(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="cannot replace itself"):
        replace_attention(nn.MultiheadAttention(32, 4))
    with pytest.raises(ValueError, match="unknown mixer 'ea6'"):
        replace_attention(encoder(), "ea6")
