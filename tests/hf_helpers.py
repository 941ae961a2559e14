"""Tiny language models and inputs for tests; import after `pytest.importorskip`."""

from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from eattn.hf import (
    EAConfig,
    EAForCausalLM,
    EAForMaskedLM,
    EAForQuestionAnswering,
    EAForSequenceClassification,
    EAForTokenClassification,
    EAModel,
)

VOCAB = 43
HEADS = (
    EAForCausalLM,
    EAForMaskedLM,
    EAForSequenceClassification,
    EAForTokenClassification,
    EAForQuestionAnswering,
)
KINDS = (EAModel, *HEADS)
PER_TEXT = (EAForSequenceClassification,)  # one result per text, not per token
# Taylor with decay, quadrature with gates, all options of QKRange, exact EA, a wide grid, and six
# other kinds of mixers
MIXERS = (
    *("ea-6+decay", "ea-q17+gate", "ea-2+norm+bandwidth+center", "ea", "ea-q65r16+norm"),
    *("sa", "sa+rope", "la", "la+gate", "deltanet", "linear-rnn"),
)
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


def labels_for(kind: type, tokens: Tensor) -> dict[str, Tensor]:
    """Return labels for tokens [B, L], by argument of the model's forward."""
    if kind is EAForSequenceClassification:
        return {"labels": tokens[:, 0] % 2}
    if kind is EAForTokenClassification:
        return {"labels": tokens % 2}
    if kind is EAForQuestionAnswering:
        return {"start_positions": tokens[:, 0] % 3, "end_positions": tokens[:, 1] % 3 + 2}
    return {"labels": tokens}


def padded(rows: list[Tensor], side: str) -> tuple[Tensor, Tensor]:
    """Pad rows of unequal length with token 0; return input_ids and attention_mask [B, L]."""
    L = max(len(row) for row in rows)
    tokens, mask = torch.zeros(2, len(rows), L, dtype=torch.long).unbind()
    for i, row in enumerate(rows):
        at = slice(L - len(row), L) if side == "left" else slice(0, len(row))
        tokens[i, at], mask[i, at] = row, 1
    return tokens, mask


def letters() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per letter, which pads on the left."""
    vocabulary = {"<pad>": 0, "?": 1} | {chr(96 + i): i + 1 for i in range(1, 27)} | {"<mask>": 28}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.decoder = decoders.Fuse()
    special = dict(pad_token="<pad>", mask_token="<mask>", padding_side="left")
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)
