"""BERT-base as a causal language model of transformers, for the benchmarks that generate text."""

from dataclasses import dataclass
from typing import Any

import torch

from eattn.hf import EAConfig, EAForCausalLM
from paper.harness.bert import BASE, DEPTH, DIM


@dataclass(frozen=True)
class LanguageModelPlan:
    """Sizes of the model of a plan; only the defaults are BERT-base."""

    dim: int = DIM
    depth: int = DEPTH
    heads: int = BASE.heads
    vocab: int = 30522

    def model(self, mixer: str, **options: Any) -> EAForCausalLM:
        """Return a model with seeded random weights; `options` are fields of `EAConfig`."""
        torch.manual_seed(0)
        config = EAConfig(
            vocab_size=self.vocab,
            hidden_size=self.dim,
            num_hidden_layers=self.depth,
            num_attention_heads=self.heads,
            mixer=mixer,
            **options,
        )
        return EAForCausalLM(config).eval()
