"""Layers: element-wise attention, the mechanisms it is compared with, and Transformer blocks."""

from eattn.nn.attention import ElementwiseAttention, set_expansion
from eattn.nn.base import Mixer
from eattn.nn.block import TransformerBlock, TransformerConfig
from eattn.nn.conv import Convolved, ShortConv
from eattn.nn.decay import Decay
from eattn.nn.decoding_state import DecodingState
from eattn.nn.embedding import CalendarEmbedding, LearnedPositions, calendar_fields
from eattn.nn.encoder import EncoderState, TransformerEncoder
from eattn.nn.multihead_adapter import MultiheadAdapter, replace_attention
from eattn.nn.qk_range import QKRange
from eattn.nn.registry import MIXERS, check_mixer, make_mixer

__all__ = [
    "MIXERS",
    "CalendarEmbedding",
    "Convolved",
    "Decay",
    "DecodingState",
    "ElementwiseAttention",
    "EncoderState",
    "LearnedPositions",
    "Mixer",
    "MultiheadAdapter",
    "QKRange",
    "ShortConv",
    "TransformerBlock",
    "TransformerConfig",
    "TransformerEncoder",
    "calendar_fields",
    "check_mixer",
    "make_mixer",
    "replace_attention",
    "set_expansion",
]
