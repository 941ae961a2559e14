"""A model writes on, for as long as it is asked to, in memory that does not grow.

`generate` of transformers keeps all tokens, and hands them around at every step. Here the prompt
goes into the cache, and from then on there is one token and the cache.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from eattn.hf import EACache, EAForCausalLM
from eattn.hf.model import nan_weight
from eattn.lm.tokenizer import writer
from eattn.train.config import check_number

CHUNK = 1024  # tokens of a prompt that are read at once


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: at temperature 0 the likeliest, else by chance.

    `top_k` leaves the so many likeliest ones, `top_p` the likeliest that together have so much of
    the probability.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, least=0)
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")

    def warpers(self) -> list[Any]:
        """What scores go through before chance decides, in the order of transformers."""
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
    """The tokens after a prompt, one at a time; `cache` is all that is kept of those before.

    Its size is constant for every mixer but exact EA, `sa` and `aft`. It ends before the model's
    token for the end of a text, unless `endless`, which never has it chosen. The same seed gives
    the same tokens.
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
        if tokens < 1:
            raise ValueError(f"tokens must be at least 1, got {tokens}")
        _check_room(model.config.max_position_embeddings, len(prompt), tokens)
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
        """[1, n] into the cache -> the logits of the token after them, [1, vocab]."""
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
    """The text after a prompt, as it comes; `options` are those of a `Generation`."""
    generation = Generation(model, tokenizer(prompt)["input_ids"], **options)
    made = writer(tokenizer)
    for token in generation:
        if text := made.write(token):
            yield text
    if text := made.rest():
        yield text


def _check_room(positions: int | None, prompt: int, tokens: int) -> None:
    """That all that is read has a learned position; the last token is not read."""
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
    """The tokens that end a text."""
    ends = model.config.eos_token_id
    return set(ends if isinstance(ends, list) else [] if ends is None else [ends])
