"""Graphs of an `EAForCausalLM`: for a whole text, or for one token at a time."""

from typing import Any

import torch
from torch import Tensor

from eattn.export.graph import BATCH, LENGTH, Graph, Port
from eattn.export.layers import Named, Stateful
from eattn.hf import EACache, EAForCausalLM


def sequence(model: EAForCausalLM) -> Graph:
    """Return the graph from tokens and their mask to the logits after each token, and the state."""
    return _graph(_Sequence, model, BATCH, LENGTH)


def step(model: EAForCausalLM) -> Graph:
    """Return the graph from one more token of each text to the logits after it."""
    return _graph(_Step, model, BATCH)


class _Cached(Stateful):
    def __init__(self, model: EAForCausalLM) -> None:
        super().__init__(model, model.model.layers, {})

    def named(self, cache: EACache) -> Named:
        states: list[Any] = [layer.state for layer in cache.layers]
        assert cache.lengths is not None
        return self.name(states, {"seen": cache.lengths})


class _Sequence(_Cached):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        inputs: dict[str, Any] = dict(input_ids=input_ids, attention_mask=attention_mask)
        if not self.fixed_size:
            return self.model(**inputs, use_cache=False).logits
        cache = EACache(len(self.blocks))
        logits = self.model(**inputs, past_key_values=cache).logits
        return logits, self.named(cache)


class _Step(_Cached):
    def forward(self, input_ids: Tensor, state: Named) -> tuple[Tensor, Named]:
        cache = EACache(len(self.blocks))
        for layer, before in zip(cache.layers, self.take(state).layers, strict=True):
            layer.update(before)
        cache.lengths = state["seen"]
        logits = self.model(input_ids.unsqueeze(1), past_key_values=cache).logits
        return logits.squeeze(1), self.named(cache)


def _graph(kind: type[_Cached], model: EAForCausalLM, *axes: str) -> Graph:
    vocabulary = model.config.vocab_size
    inputs = [Port("input_ids", torch.int64, axes, between=(0, vocabulary - 1))]
    if LENGTH in axes:
        inputs.append(Port("attention_mask", torch.int64, axes))
    output = Port("logits", torch.float32, (*axes, vocabulary))
    name = "sequence" if LENGTH in axes else "step"
    return kind(model).graph(name, tuple(inputs), output, model.config.max_position_embeddings)
