"""The short convolution: what it computes, what it skips, and that it tells near from far.

That parallel, chunked, stepwise, padded and packed agree is tested with every mixer's forms.
"""

import pytest
import torch
import torch.nn.functional as F
from mixer_helpers import same, tokens

from eattn.nn import Convolved, ShortConv, TransformerBlock, make_mixer

widths = pytest.mark.parametrize("width", [1, 2, 4, 9])


def conv_of(width: int, dim: int = 6) -> ShortConv:
    torch.manual_seed(0)
    made = ShortConv(dim, width=width).double()
    torch.nn.init.normal_(made.bias)
    return made


@widths
@pytest.mark.parametrize("L", [1, 3, 20])
def test_it_is_torchs_depthwise_convolution_added_to_its_input(width, L):
    conv, x = conv_of(width), tokens(2, L, 6)
    padded = F.pad(x.mT, (width - 1, 0))
    want = F.conv1d(padded, conv.weight.flip(0).T.unsqueeze(1), conv.bias, groups=6).mT
    same(conv(x)[0], x + want)


@widths
def test_it_keeps_the_last_inputs_of_each_row(width):
    conv, x = conv_of(width), tokens(3, 7, 6)
    mask = torch.tensor([[1] * 7, [0, 1, 0, 1, 1, 0, 0], [0] * 7], dtype=torch.bool)
    before = tokens(3, width - 1, 6, seed=5)
    _, last = conv(x, mask, before)
    for row in range(3):
        seen = torch.cat([before[row], x[row, mask[row]]])
        assert torch.equal(last[row], seen[len(seen) - width + 1 :])


def test_without_it_a_token_does_not_know_the_order_of_those_before():
    x = tokens(1, 6, 8)
    turned = torch.cat([x[:, [2, 0, 4, 1, 3]], x[:, 5:]], 1)
    for short_conv, alike in ((None, True), (4, False)):
        mixer = make_mixer("ea-6", 8, causal=True, short_conv=short_conv).double()
        assert torch.allclose(mixer(x)[:, -1], mixer(turned)[:, -1]) is alike


def test_a_block_has_one_where_its_config_says_so():
    block = TransformerBlock(dim=8, short_conv=3, causal=True)
    assert isinstance(block.mixer, Convolved) and block.mixer.conv.width == 3
    assert not any(isinstance(m, ShortConv) for m in TransformerBlock(dim=8).modules())


@pytest.mark.parametrize(
    ("width", "error", "text"),
    [
        (0, ValueError, "short_conv must be at least 1, got 0"),
        (2.0, TypeError, "short_conv must be an int, got float"),
        (True, TypeError, "short_conv must be an int, got bool"),
    ],
)
def test_a_bad_width_is_named(width, error, text):
    with pytest.raises(error, match=text):
        make_mixer("sa", 8, short_conv=width)


def test_the_memory_of_a_mixer_without_convolution_is_refused():
    _, state = make_mixer("ea-6", 8, causal=True).step(torch.zeros(2, 8))
    with pytest.raises(TypeError, match="state must be a ConvState, got State"):
        make_mixer("ea-6", 8, causal=True, short_conv=4).step(torch.zeros(2, 8), state)
