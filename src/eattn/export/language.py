"""The graphs of an `EAForCausalLM`: a whole text, or the next token of it."""

from typing import Any

import torch
from torch import Tensor, nn

from eattn.export.checks import check_sequence, longest
from eattn.export.graph import BATCH, LENGTH, Graph, Port
from eattn.export.state import Layers, Named, ports
from eattn.hf import EACache, EAForCausalLM


def sequence(model: EAForCausalLM) -> Graph:
    """Tokens and which of them are real -> the logits after each; and the state after all."""
    config = model.config
    check_sequence(model, config.mixer)
    module = _Sequence(model)
    return Graph(
        "sequence",
        module,
        inputs=(
            _tokens(model, BATCH, LENGTH),
            Port("attention_mask", torch.int64, (BATCH, LENGTH)),
        ),
        output=Port("logits", torch.float32, (BATCH, LENGTH, config.vocab_size)),
        state=module.ports(),
        longest=_longest(model),
    )


def step(model: EAForCausalLM) -> Graph:
    """One more token of each text -> the logits of the one after it."""
    module = _Step(model)
    module.layers.check()
    return Graph(
        "step",
        module,
        inputs=(_tokens(model, BATCH),),
        output=Port("logits", torch.float32, (BATCH, model.config.vocab_size)),
        state=module.ports(),
        continues=True,
        longest=_longest(model),
    )


def _tokens(model: EAForCausalLM, *axes: str) -> Port:
    return Port("input_ids", torch.int64, axes, between=(0, model.config.vocab_size - 1))


def _longest(model: EAForCausalLM) -> int | None:
    limits = (model.config.max_position_embeddings, longest(model))
    return min((n for n in limits if n is not None), default=None)


class _Reading(nn.Module):
    """What both graphs share: the cache, tensor by tensor."""

    def __init__(self, model: EAForCausalLM) -> None:
        super().__init__()
        self.model = model
        self.layers = Layers(model.model.layers)

    def ports(self) -> tuple[Port, ...]:
        """None at all where some of it grows."""
        own = {"seen": torch.zeros(1, dtype=torch.int64)}
        return self.layers.ports + ports(own) if self.layers.kept else ()

    def _named(self, cache: EACache) -> Named:
        states: list[Any] = [layer.state for layer in cache.layers]
        assert cache.real is not None
        return self.layers.name(states) | {"seen": cache.real}


class _Sequence(_Reading):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        told: dict[str, Any] = dict(input_ids=input_ids, attention_mask=attention_mask)
        if not self.layers.kept:
            return self.model(**told, use_cache=False).logits
        cache = EACache(len(self.layers.blocks))
        logits = self.model(**told, past_key_values=cache).logits
        return logits, self._named(cache)


class _Step(_Reading):
    def forward(self, input_ids: Tensor, state: Named) -> tuple[Tensor, Named]:
        cache = EACache(len(self.layers.blocks))
        for layer, before in zip(cache.layers, self.layers.take(state), strict=True):
            layer.update(before)
        cache.real = state["seen"]
        logits = self.model(input_ids.unsqueeze(1), past_key_values=cache).logits
        return logits.squeeze(1), self._named(cache)
