"""Generate text of any length in constant memory.

`generate` of transformers keeps all tokens and copies them at every step. Here a step needs the
last token and the cache only.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from eattn._checks import check_number, check_size
from eattn.hf import EACache, EAForCausalLM
from eattn.hf.model import nan_weight
from eattn.lm.tokenizer import decode

CHUNK = 1024  # tokens of a prompt per forward


@dataclass(frozen=True)
class Sampling:
    """Options that choose the next token."""

    temperature: float = 1.0  # 0 takes the most likely token
    top_k: int | None = None  # sample from the k most likely tokens only
    top_p: float | None = None  # sample from the most likely ones with total probability p only

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, least=0)
        if self.top_k is not None:
            check_size("top_k", self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")

    def warpers(self) -> list[Any]:
        """Return the processors of the logits, in the order of transformers."""
        if not self.temperature:
            return []
        made: list[Any] = []
        if self.temperature != 1:
            made.append(TemperatureLogitsWarper(self.temperature))
        if self.top_k is not None:
            made.append(TopKLogitsWarper(self.top_k))
        if self.top_p is not None and self.top_p < 1:
            made.append(TopPLogitsWarper(self.top_p))
        return made


class Generation:
    """Iterator over the tokens after a prompt.

    The size of its `cache` is constant for every mixer but exact EA, `sa` and `aft`.

    Parameters
    ----------
    model : EAForCausalLM
    prompt : sequence of int
    tokens : int
        Maximum number of tokens to generate.
    sampling : Sampling, optional
    seed : int, optional
        The same seed gives the same tokens.
    endless : bool, default False
        Never choose the token that ends a text; by default it ends the iteration.
    """

    def __init__(
        self,
        model: EAForCausalLM,
        prompt: Sequence[int],
        *,
        tokens: int,
        sampling: Sampling | None = None,
        seed: int | None = None,
        endless: bool = False,
    ) -> None:
        if not len(prompt):
            raise ValueError("the prompt must have at least one token, got none")
        check_size("tokens", tokens)
        _check_positions(model.config.max_position_embeddings, len(prompt), tokens)
        self.model, self.left, self.endless = model.eval(), tokens, endless
        self.sampling = sampling or Sampling()
        self.warpers = self.sampling.warpers()
        self.rng = torch.Generator()
        if seed is None:
            self.rng.seed()
        else:
            self.rng.manual_seed(seed)
        self.ends = _ends(model)
        self.cache = EACache(len(model.model.layers))
        ids = torch.tensor(list(prompt), device=model.device).unsqueeze(0)
        for chunk in ids.split(CHUNK, 1):
            self.scores = self._read(chunk)

    def __iter__(self) -> "Generation":
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        token = self._choose(self.scores)
        if token in self.ends:
            self.left = 0
            raise StopIteration
        self.left -= 1
        if self.left:
            self.scores = self._read(torch.tensor([[token]], device=self.model.device))
        return token

    @torch.inference_mode()
    def _read(self, tokens: Tensor) -> Tensor:
        """Add tokens [1, n] to the cache and return the logits of the next one, [1, vocab]."""
        out = self.model(tokens, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        scores: Tensor = out.logits[:, -1].float().cpu()
        if bool(scores.isnan().any()):
            name = nan_weight(self.model)
            why = f"the weight {name} holds NaN" if name else "no weight does: an overflow?"
            raise ValueError(f"the model's logits are NaN; {why}")
        if self.endless and self.ends:
            scores = scores.clone()
            scores[:, sorted(self.ends)] = -torch.inf
        return scores

    @torch.inference_mode()
    def _choose(self, scores: Tensor) -> int:
        if not self.sampling.temperature:
            return int(scores.argmax())
        for warp in self.warpers:
            scores = warp(None, scores)
        return int(torch.multinomial(scores.softmax(-1), 1, generator=self.rng))


def stream(model: EAForCausalLM, tokenizer: Any, prompt: str, **options: Any) -> Iterator[str]:
    """Yield the text after a prompt as it is generated; `options` are those of `Generation`."""
    yield from decode(tokenizer, Generation(model, tokenizer(prompt)["input_ids"], **options))


def _check_positions(positions: int | None, prompt: int, tokens: int) -> None:
    """Raise unless all tokens but the last, which is not read, have a learned position."""
    if positions is None or prompt + tokens - 1 <= positions:
        return
    if prompt > positions:
        raise ValueError(
            f"the prompt has {prompt} tokens, and the model learned positions for {positions}"
        )
    raise ValueError(
        f"tokens must be at most {positions + 1 - prompt} after a prompt of {prompt}, as the model"
        f" learned positions for {positions}, got {tokens}"
    )


def _ends(model: EAForCausalLM) -> set[int]:
    """Return the tokens that end a text."""
    ends = model.config.eos_token_id
    return set(ends if isinstance(ends, list) else [] if ends is None else [ends])
