"""BERT-base as Figures 4 and 5 measure it: 12 blocks, 768 channels, heads of 64, FFN 4D.

The blocks alone: embeddings cost the same whatever the mixer, and positions are not the mixer's.
"""

from functools import cache

import torch

from eattn.nn import TransformerConfig, TransformerEncoder

BASE = TransformerConfig.bert_base()
DIM, DEPTH, DROPOUT = BASE.dim, BASE.depth, BASE.dropout
FLOAT = 4  # bytes


def make_model(
    name: str,
    *,
    dim: int,
    depth: int,
    causal: bool = False,
    max_len: int | None = None,
    dropout: float = DROPOUT,
) -> TransformerEncoder:
    """BERT-base with the mixer `name`, or one of its proportions for tests; the same each time."""
    torch.manual_seed(0)
    config = TransformerConfig.bert_base(
        dim=dim,
        depth=depth,
        ffn=4 * dim,
        mixer=name,
        causal=causal,
        max_len=max_len,
        dropout=dropout,
    )
    return TransformerEncoder(config)


@cache
def weight_bytes(name: str, *, dim: int, depth: int) -> int:
    """Of all parameters; gradients take as much again."""
    with torch.device("meta"):
        return FLOAT * make_model(name, dim=dim, depth=depth).num_parameters


def default_device() -> str:
    """The card, where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"
