"""Tiny language models and inputs for tests; import after `pytest.importorskip`."""

from typing import Any

import torch
from torch import Tensor

from eattn.hf import EAConfig, EAForCausalLM

VOCAB = 43
# Taylor, quadrature, all options of QKRange, exact EA, and three other kinds of mixers
MIXERS = ("ea-6", "ea-q17", "ea-2+norm+bandwidth+center", "ea", "sa", "la", "linear-rnn")
# The defaults, BERT's layer norms with learned positions, and no convolution
SHAPES: dict[str, dict[str, Any]] = {
    "default": {},
    "bert": dict(norm="post", max_position_embeddings=40),
    "plain": dict(short_conv=None),
}


def config(**changes: Any) -> EAConfig:
    base = dict(vocab_size=VOCAB, hidden_size=12, num_hidden_layers=2, num_attention_heads=3)
    return EAConfig(**{**base, "pad_token_id": 0, **changes})


def make(kind: type = EAForCausalLM, **changes: Any) -> Any:
    """Make a float64 model in evaluation mode, with embeddings that differ between tokens."""
    torch.manual_seed(0)
    return kind(config(initializer_range=0.5, **changes)).double().eval()


def ids(B: int, L: int, seed: int = 1) -> Tensor:
    return torch.randint(1, VOCAB, (B, L), generator=torch.Generator().manual_seed(seed))


def padded(rows: list[Tensor], side: str) -> tuple[Tensor, Tensor]:
    """Pad rows of unequal length with token 0; return input_ids and attention_mask [B, L]."""
    L = max(len(row) for row in rows)
    tokens, mask = torch.zeros(2, len(rows), L, dtype=torch.long).unbind()
    for i, row in enumerate(rows):
        at = slice(L - len(row), L) if side == "left" else slice(0, len(row))
        tokens[i, at], mask[i, at] = row, 1
    return tokens, mask
