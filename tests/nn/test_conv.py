"""ShortConv: values, masked tokens, and sensitivity to order.

test_forms.py checks that parallel, chunked and stepwise calls agree, with and without padding.
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
def test_output_is_input_plus_depthwise_convolution(width, L):
    conv, x = conv_of(width), tokens(2, L, 6)
    padded = F.pad(x.mT, (width - 1, 0))
    want = F.conv1d(padded, conv.weight.flip(0).T.unsqueeze(1), conv.bias, groups=6).mT
    same(conv(x)[0], x + want)


@widths
def test_last_inputs_of_each_row_are_returned(width):
    conv, x = conv_of(width), tokens(3, 7, 6)
    mask = torch.tensor([[1] * 7, [0, 1, 0, 1, 1, 0, 0], [0] * 7], dtype=torch.bool)
    before = tokens(3, width - 1, 6, seed=5)
    _, last = conv(x, mask, before)
    for row in range(3):
        seen = torch.cat([before[row], x[row, mask[row]]])
        assert torch.equal(last[row], seen[len(seen) - width + 1 :])


def test_convolution_makes_output_depend_on_order():
    x = tokens(1, 6, 8)
    permuted = torch.cat([x[:, [2, 0, 4, 1, 3]], x[:, 5:]], 1)
    for short_conv, equal in ((None, True), (4, False)):
        mixer = make_mixer("ea-6", 8, causal=True, short_conv=short_conv).double()
        assert torch.allclose(mixer(x)[:, -1], mixer(permuted)[:, -1]) is equal


def test_config_adds_convolution_to_block():
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
def test_invalid_width_raises(width, error, text):
    with pytest.raises(error, match=text):
        make_mixer("sa", 8, short_conv=width)
