"""What a model is made of, in the field names of BertConfig."""

from typing import Any, Self

from transformers import PreTrainedConfig

from eattn._checks import check_size
from eattn.nn import TransformerConfig

HEADS = 12  # of the mixers that have heads, or the next smaller number that divides hidden_size


class EAConfig(PreTrainedConfig):
    """The default: Pre-LN, no positions and a short convolution, so that no length is too long.

    `mixer` is any name that `eattn.nn.make_mixer` knows. A series (`ea-6`), a quadrature (`ea-q17`)
    and the recurrences decode with a cache of constant size; exact EA (`ea`), `sa` and `aft` keep
    every token. `max_position_embeddings` makes learned absolute positions, and is then the longest
    text; None has none. `causal` None leaves it to the class: a causal language model is, a masked
    one and a classifier are not.

    >>> config = EAConfig(hidden_size=64)
    >>> config.intermediate_size, config.num_attention_heads, config.mixer
    (256, 8, 'ea-6')
    """

    model_type = "eattn"
    keys_to_ignore_at_inference = ("past_key_values",)

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int | None = None  # None: 12, or the next smaller divisor of hidden_size
    intermediate_size: int | None = None  # None: 4 hidden_size
    mixer: str = "ea-6"
    short_conv: int | None = 4  # width of the convolution before each mixer; None: no such
    norm: str = "pre"  # or "post", as BERT has it
    max_position_embeddings: int | None = None
    causal: bool | None = None
    hidden_dropout_prob: float = 0.0
    classifier_dropout: float | None = None  # None: hidden_dropout_prob
    layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02  # of embeddings and heads
    tie_word_embeddings: bool = True
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        for name in ("vocab_size", "hidden_size", "num_hidden_layers"):
            check_size(name, getattr(self, name))
        if self.num_attention_heads is None:
            self.num_attention_heads = _divisor(self.hidden_size)
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        if self.causal is not None and not isinstance(self.causal, bool):
            raise TypeError(f"causal must be a bool or None, got {type(self.causal).__name__}")
        self.block(causal=True)  # which checks what there is to check
        super().__post_init__(**kwargs)

    def block(self, *, causal: bool) -> TransformerConfig:
        """The same in the words of `eattn.nn`."""
        return TransformerConfig(
            dim=self.hidden_size,
            depth=self.num_hidden_layers,
            mixer=self.mixer,
            heads=self.num_attention_heads or 1,
            causal=causal,
            ffn=self.intermediate_size,
            norm=self.norm,
            dropout=self.hidden_dropout_prob,
            max_len=self.max_position_embeddings,
            eps=self.layer_norm_eps,
            short_conv=self.short_conv,
        )

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:
        kind = config_dict.get("model_type", cls.model_type)
        if kind != cls.model_type:
            raise ValueError(
                f"this is the configuration of a model of type {kind!r}, not {cls.model_type!r}:"
                " load it with the class of its own, or with an Auto class"
            )
        config: Self = super().from_dict(config_dict, **kwargs)
        return config


def _divisor(hidden_size: int) -> int:
    return next(heads for heads in range(HEADS, 0, -1) if hidden_size % heads == 0)
