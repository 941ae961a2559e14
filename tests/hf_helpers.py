"""Tiny language models to test, and inputs for them. Ask for transformers first."""

from typing import Any

import torch
from torch import Tensor

from eattn.hf import EAConfig, EAForCausalLM

VOCAB = 43
# A series, a quadrature, what keeps q and k in range, exact EA, and one of each other kind.
MIXERS = ("ea-6", "ea-q17", "ea-2+norm+bandwidth+center", "ea", "sa", "la", "linear-rnn")
# The defaults, BERT's order of norms with learned positions, and neither convolution nor positions.
SHAPES: dict[str, dict[str, Any]] = {
    "default": {},
    "bert": dict(norm="post", max_position_embeddings=40),
    "plain": dict(short_conv=None),
}


def config(**changes: Any) -> EAConfig:
    base = dict(vocab_size=VOCAB, hidden_size=12, num_hidden_layers=2, num_attention_heads=3)
    return EAConfig(**{**base, "pad_token_id": 0, **changes})


def make(kind: type = EAForCausalLM, **changes: Any) -> Any:
    """In float64, for inference, with weights far enough from 0 to tell tokens apart."""
    torch.manual_seed(0)
    return kind(config(initializer_range=0.5, **changes)).double().eval()


def ids(B: int, L: int, seed: int = 1) -> Tensor:
    return torch.randint(1, VOCAB, (B, L), generator=torch.Generator().manual_seed(seed))


def padded(rows: list[Tensor], side: str) -> tuple[Tensor, Tensor]:
    """Rows [n] of unequal length as input_ids and attention_mask [B, L]; padding is token 0."""
    L = max(len(row) for row in rows)
    tokens, mask = torch.zeros(2, len(rows), L, dtype=torch.long).unbind()
    for i, row in enumerate(rows):
        at = slice(L - len(row), L) if side == "left" else slice(0, len(row))
        tokens[i, at], mask[i, at] = row, 1
    return tokens, mask
