"""What a language model is made of and how it is trained, in one place."""

from dataclasses import dataclass
from typing import Any

from eattn.hf import EAConfig
from eattn.lm.tokenizer import BYTES
from eattn.train import Plan, TrainConfig

TOKENIZERS = ("bytes", "bpe")


@dataclass(frozen=True)
class Settings:
    """All choices of a training; mixers differ in nothing else, and in no number of parameters.

    >>> Settings(mixer="sa", hidden=64).model(257).num_attention_heads
    8
    """

    mixer: str = "ea-6"  # any name that `eattn.nn.make_mixer` knows
    hidden: int = 256  # channels of a token
    layers: int = 4
    short_conv: int | None = 4  # width of the convolution before each mixer; None: no such
    positions: bool = False  # learned ones, and then no text longer than `length`
    tokenizer: str = "bytes"  # or "bpe"
    vocab: int = 4096  # tokens of a BPE
    length: int = 256  # tokens of a row
    batch_tokens: int = 4096  # of a step, in rows
    steps: int | None = 400
    epochs: int | None = None  # instead of steps
    lr: float = 2e-3
    evaluations: int = 10
    judged: int = 2**16  # tokens of the held-out text at most that an evaluation reads
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tokenizer not in TOKENIZERS:
            known = " or ".join(map(repr, TOKENIZERS))
            raise ValueError(f"tokenizer must be {known}, got {self.tokenizer!r}")
        for name in ("length", "evaluations", "judged"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.batch_tokens < self.length:
            raise ValueError(
                f"tokens of a batch must be at least those of a row, {self.length},"
                f" got {self.batch_tokens}"
            )
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"give either steps or epochs, got {self.steps} and {self.epochs}")
        self.model(BYTES + 1)  # checks the rest
        self.training(1)

    def model(self, vocab: int) -> EAConfig:
        """The configuration of a model for so many tokens; `BYTES` is the end of a text."""
        return EAConfig(
            vocab_size=vocab,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            mixer=self.mixer,
            short_conv=self.short_conv,
            max_position_embeddings=self.length if self.positions else None,
            bos_token_id=BYTES,
            eos_token_id=BYTES,
            pad_token_id=BYTES,
        )

    def training(self, rows: int, **places: Any) -> TrainConfig:
        """The run on so many rows; `places` are folders and the device."""
        size = min(self.batch_tokens // self.length, rows)
        common: Any = dict(batch_size=size, drop_last=True, lr=self.lr, seed=self.seed) | places
        common |= dict(epochs=self.epochs, max_steps=self.steps, betas=(0.9, 0.95))
        steps = Plan(rows, TrainConfig(**common)).steps
        return TrainConfig(
            **common,
            schedule="cosine",
            warmup=0.05,
            evaluate_every=max(1, round(steps / self.evaluations)),
        )
