"""TransformerEncoder: parallel, chunked and stepwise calls agree."""

import copy
import io

import pytest
import torch
from op_helpers import draw
from torch.testing import assert_close

from eattn.nn import MIXERS
from eattn.nn.block import TransformerConfig
from eattn.nn.encoder import EncoderState, TransformerEncoder

mixers = pytest.mark.parametrize("mixer", MIXERS)
norms = pytest.mark.parametrize("norm", ["post", "pre"])


def encoder_of(mixer: str = "ea-6", **changes) -> TransformerEncoder:
    torch.manual_seed(0)
    options = dict(dim=8, depth=2, heads=2, causal=True) | changes
    return TransformerEncoder(mixer=mixer, **options).double()


def in_pieces(encoder, x, *, chunks=(), steps=0):
    """Read x in chunks of these lengths, then token by token; return outputs and state."""
    state, outputs, at = None, [], 0
    for n in chunks:
        y, state = encoder(x[:, at : at + n], state=state, return_state=True)
        outputs.append(y)
        at += n
    for i in range(at, at + steps):
        y, state = encoder.step(x[:, i], state)
        outputs.append(y.unsqueeze(1))
    return torch.cat(outputs, 1), state


@norms
@mixers
def test_whole_chunks_and_steps_agree(mixer, norm):
    encoder, x = encoder_of(mixer, norm=norm), draw(2, 11, 8, seed=0)
    used = [p for name, p in encoder.named_parameters() if not name.endswith("mixer.w")]

    def with_gradients(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return y, *torch.autograd.grad(y.pow(3).sum(), used, retain_graph=True)

    whole = with_gradients(encoder(x))
    for pieces in (dict(steps=11), dict(chunks=(4, 1), steps=6)):
        found = with_gradients(in_pieces(encoder, x, **pieces)[0])
        assert_close(found[0], whole[0], rtol=0, atol=1e-12)
        assert_close(found, whole, rtol=0, atol=1e-9)


@mixers
def test_select_reorders_and_repeats_rows(mixer):
    encoder, x = encoder_of(mixer), draw(3, 11, 8, seed=0)
    index = torch.tensor([2, 0, 0, 1])
    _, state = in_pieces(encoder, x[:, :10], chunks=(6,), steps=4)
    assert_close(encoder.step(x[index, 10], state.select(index))[0], encoder(x)[index, 10])


def test_nbytes_counts_all_layers():
    _, state = encoder_of(depth=3)(draw(2, 5, 8, seed=0), return_state=True)
    assert isinstance(state, EncoderState) and len(state.layers) == 3
    assert state.nbytes == 3 * 2 * 8 * (7 + 7 + 1) * 8  # layers, B, D, s z shift, bytes


def test_state_survives_save_and_load():
    encoder, x = encoder_of(), draw(2, 6, 8, seed=0)
    _, state = encoder(x[:, :5], return_state=True)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    back = torch.load(file, weights_only=True)
    assert_close(encoder.step(x[:, 5], back)[0], encoder(x)[:, 5])


def test_output_is_normalised():
    x = draw(2, 5, 8, seed=0, scale=5.0)
    for norm in ("post", "pre"):
        y = encoder_of(norm=norm)(x)
        assert_close(y.mean(-1), torch.zeros(2, 5, dtype=torch.float64), rtol=0, atol=1e-9)
        assert_close(
            y.var(-1, correction=0), torch.ones(2, 5, dtype=torch.float64), atol=1e-4, rtol=0
        )


def test_blocks_run_in_sequence():
    encoder, x = encoder_of(depth=3, causal=False), draw(2, 5, 8, seed=0)
    y = x
    for block in encoder.blocks:
        y = block(y)
    assert torch.equal(encoder(x), y)


def test_bert_base_has_85_million_parameters():
    with torch.device("meta"):
        encoder = TransformerEncoder(TransformerConfig.bert_base())
        softmax = TransformerEncoder(TransformerConfig.bert_base(mixer="sa"))
    D, F = 768, 3072
    mixer, ffn, norms = 4 * (D * D + D), D * F + F + F * D + D, 2 * 2 * D
    assert encoder.num_parameters == 12 * (mixer + ffn + norms) == 85_054_464
    assert softmax.num_parameters == encoder.num_parameters
    assert "85,054,464 parameters" in repr(encoder)


@norms
def test_initial_gradients_have_similar_size_in_all_blocks(norm):
    """In a new encoder, gradients of any two blocks differ by less than a factor of 100."""
    encoder = encoder_of(dim=64, heads=8, depth=12, norm=norm)
    encoder(draw(2, 50, 64, seed=0)).pow(3).sum().backward()
    sizes = torch.stack([block.ffn.up.weight.grad.norm() for block in encoder.blocks])
    assert sizes.max() < 100 * sizes.min()


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        ((1, 2), TypeError, "state must be an EncoderState, got tuple"),
        (EncoderState(()), ValueError, "a layer for each of 2 blocks, got 0"),
    ],
)
def test_invalid_state_raises(state, error, message):
    encoder = encoder_of()
    with pytest.raises(error, match=message):
        encoder(draw(2, 5, 8, seed=0), state=state)
    with pytest.raises(error, match=message):
        encoder.step(draw(2, 8, seed=0), state)


@mixers
def test_encoder_survives_state_dict_and_deepcopy(mixer):
    encoder, x = encoder_of(mixer, norm="pre"), draw(2, 5, 8, seed=0)
    other = TransformerEncoder(encoder.config).double()
    other.load_state_dict(encoder.state_dict())
    assert torch.equal(other(x), encoder(x))
    assert torch.equal(copy.deepcopy(encoder)(x), encoder(x))


@pytest.mark.slow
def test_compiled_encoder_gives_same_values_and_gradients():
    encoder, x = encoder_of(), draw(2, 11, 8, seed=0)
    mask = torch.ones(2, 11, dtype=torch.bool)
    mask[1, 7:] = False
    parameters = list(encoder.parameters())
    compiled = torch.compile(encoder)
    y, expected = compiled(x, key_mask=mask), encoder(x, key_mask=mask)
    assert_close(y, expected)
    grads = (torch.autograd.grad(z[mask].pow(3).sum(), parameters) for z in (y, expected))
    assert_close(*grads)
    step = torch.compile(encoder.step)
    with torch.no_grad():
        _, state = encoder(x[:, :10], return_state=True)
        assert_close(step(x[:, 10], state)[0], encoder(x)[:, 10])
