"""BERT-base as a causal decoder: a token at any position, and the prompt before it.

States and caches are filled to a position directly, with random content of the size and scale that
so many tokens leave: what a token costs depends on how much there is to read, not on what it says.
"""

import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from eattn.nn import DecodingState, EncoderState, TransformerEncoder, check_mixer
from eattn.nn.decoding_state import KVCache
from eattn.nn.qk_range import SPREAD
from eattn.ops import State, accumulate
from paper.bench import peak
from paper.bench.bert import make_model
from paper.bench.candidates import Work, inputs

SAMPLE = 16  # tokens that stand for all, each as often as needed

Caches = list[tuple[Tensor, Tensor]]
Key = TypeVar("Key", bound=Hashable)


class Decoder:
    """A model with the mixer `name`, and what it remembers at any position up to `room` tokens.

    The memory of a KV cache is allocated once, when first needed, and read up to the position.
    """

    def __init__(
        self, name: str, *, batch: int, room: int, dim: int, depth: int, device: str = "cpu"
    ) -> None:
        self.model = make_model(name, dim=dim, depth=depth, causal=True, max_len=room)
        self.model.to(device).eval()
        self.expansion, self.batch, self.room = check_mixer(name), batch, room
        self.x_t = inputs((batch, 1, dim), 1)[0][:, 0].to(device)
        self.caches: Caches = []

    @torch.inference_mode()
    def at(self, position: int) -> EncoderState:
        """The states of all blocks after so many tokens."""
        depth = self.model.config.depth
        if self.expansion is not None:
            return EncoderState(tuple(self._series(position, block) for block in range(depth)))
        if not self.caches:
            self.caches = [self._cache() for _ in range(depth)]
        return EncoderState(
            tuple(KVCache(k, v, position, None, self.room, [position]) for k, v in self.caches)
        )

    @torch.inference_mode()
    def token(self, x_t: Tensor, state: EncoderState) -> tuple[Tensor, EncoderState]:
        """One more token; what comes out goes in next."""
        y_t, after = self.model.step(x_t, state)
        if y_t.is_cuda:
            torch.cuda.synchronize()
        return y_t, after

    def _series(self, position: int, seed: int) -> DecodingState:
        """The sums of SAMPLE random tokens, as if each had come position / SAMPLE times."""
        rng = torch.Generator().manual_seed(seed)
        k, v = torch.randn(2, self.batch, SAMPLE, self.model.config.dim, generator=rng)
        state = accumulate(SPREAD * k, v, expansion=self.expansion)
        scale = position / SAMPLE
        scaled = State(state.s * scale, state.z * scale, state.shift, state.expansion)
        return scaled.to(self.x_t.device)

    def _cache(self) -> tuple[Tensor, Tensor]:
        """Keys and values [B, H, room, d], the same SAMPLE random tokens again and again."""
        config = self.model.config
        shape = (self.batch, config.heads, self.room, config.dim // config.heads)
        keys, values = (torch.empty(shape, device=self.x_t.device) for _ in range(2))
        for held in (keys, values):
            sample = torch.randn_like(held[:, :, :SAMPLE])
            for part in held.split(SAMPLE, 2):
                part.copy_(sample[:, :, : part.shape[2]])
        return keys, values


class Stream:
    """One sequence of tokens that goes on from a position."""

    def __init__(self, decoder: Decoder, position: int) -> None:
        self.decoder, self.x_t, self.state = decoder, decoder.x_t, decoder.at(position)
        self.state_bytes = self.state.nbytes

    def seconds(self, count: int) -> list[float]:
        """Decode so many tokens; the time of each."""
        times = []
        for _ in range(count):
            start = time.perf_counter()
            self.x_t, self.state = self.decoder.token(self.x_t, self.state)
            times.append(time.perf_counter() - start)
        return times


def alternate(
    streams: Mapping[Key, Stream],
    *,
    tokens: int,
    burst: int,
    tick: Callable[[Key], None] = lambda key: None,
) -> dict[Key, list[float]]:
    """Seconds of `tokens` tokens of every stream, a `burst` of each in turn.

    Whatever disturbs the machine disturbs them all; the first token of a burst, which finds the
    caches of the processor full of another stream, is not counted. The order changes every round,
    or each stream would always run in the wake of the same other.
    """
    found: dict[Key, list[float]] = {key: [] for key in streams}
    order, rng = list(streams), random.Random(0)
    while streams and min(map(len, found.values())) < tokens:
        rng.shuffle(order)
        for key in order:
            found[key] += streams[key].seconds(burst + 1)[1:]
            tick(key)
    return found


def room_for(positions: Sequence[int], tokens: int, burst: int) -> int:
    """Tokens a cache needs room for, those decoded at the last position among them."""
    turns = -(-tokens // burst)
    return max(positions) + turns * (burst + 1)


# ---- in a process of its own ---------------------------------------------------------------------


def generate(
    name: str,
    *,
    batch: int,
    position: int,
    tokens: int,
    dim: int,
    depth: int,
    device: str = "cpu",
) -> Work:
    """To remember `position` tokens and decode `tokens` more; the weights are there before."""
    peak.free_at_once()
    options = dict(batch=batch, dim=dim, depth=depth, device=device)
    decoder = Decoder(name, room=position + tokens, **options)  # type: ignore[arg-type]
    _warm(decoder.model, decoder.x_t)
    return lambda: Stream(decoder, position).seconds(tokens)


def prefill(
    name: str, *, batch: int, length: int, chunk: int, dim: int, depth: int, device: str = "cpu"
) -> Work:
    """To read a prompt in chunks; the weights and the prompt are there before."""
    peak.free_at_once()
    model = make_model(name, dim=dim, depth=depth, causal=True, max_len=length).to(device).eval()
    prompt = inputs((batch, length, dim), 1)[0].to(device)
    _warm(model, prompt[:, 0])
    return lambda: read(model, prompt, chunk)


@torch.inference_mode()
def read(model: TransformerEncoder, prompt: Tensor, chunk: int) -> EncoderState:
    """The state after a prompt [B, L, D]."""
    state = None
    for part in prompt.split(chunk, 1):
        _, state = model(part, state=state, return_state=True)
    assert state is not None
    return state


@torch.inference_mode()
def _warm(model: TransformerEncoder, x_t: Tensor) -> None:
    """Thread pools and libraries are not part of the cost."""
    model(x_t[:1].unsqueeze(1).expand(-1, 2, -1))
