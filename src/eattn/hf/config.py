"""Configuration of the Hugging Face models, with the field names of BertConfig."""

from typing import Any, Self

import torch
from transformers import PreTrainedConfig

from eattn._checks import check_size
from eattn.nn import TransformerBlock, TransformerConfig

MAX_HEADS = 12  # the default is the largest divisor of hidden_size up to this
CAUSAL_MIXER, FULL_MIXER = "ea-6+decay", "ea-6"  # the defaults


class EAConfig(PreTrainedConfig):
    """Configuration of the EA models.

    The default has Pre-LN blocks, a short convolution and no positions, so texts may have any
    length.

    Parameters
    ----------
    vocab_size : int, default 30522
        Number of tokens in the vocabulary.
    hidden_size : int, default 768
        Number of channels D.
    num_hidden_layers : int, default 12
        Number of blocks.
    num_attention_heads : int, optional
        Number of heads of mixers with heads; 12, or the next smaller divisor of `hidden_size`, by
        default.
    intermediate_size : int, optional
        Hidden channels of the feed-forward network; 4 * hidden_size by default.
    mixer : str, optional
        Any name that `eattn.nn.make_mixer` accepts. None leaves it to the model class: "ea-6+decay"
        for causal models, "ea-6" for others. `ea`, `sa` and `aft` keep every token in their cache;
        the cache of other mixers has a constant size.
    short_conv : int or None, default 4
        Width of the causal convolution before each mixer; None for no convolution.
    norm : {"pre", "post"}, default "pre"
        Layer norms before each branch, or after each residual addition as in BERT.
    max_position_embeddings : int, optional
        Number of learned absolute positions, which limits the length of a text; no positions by
        default. Required by the mixer `aft`.
    causal : bool, optional
        Whether tokens attend only to earlier tokens. None leaves it to the model class: True for
        `EAModel` and `EAForCausalLM`, False for the others.
    hidden_dropout_prob : float, default 0.0
        Dropout rate of embeddings and blocks.
    classifier_dropout : float, optional
        Dropout rate before the classifier; `hidden_dropout_prob` by default.
    layer_norm_eps : float, default 1e-5
        Epsilon of the layer norms.
    initializer_range : float, default 0.02
        Standard deviation of new embeddings and heads.
    tie_word_embeddings : bool, default True
        Share the weights of input and output embeddings.
    use_cache : bool, default True
        Return a cache from causal models in evaluation mode.
    pad_token_id, bos_token_id, eos_token_id : int, optional
        Special tokens.

    Examples
    --------
    >>> config = EAConfig(hidden_size=64)
    >>> config.intermediate_size, config.num_attention_heads, config.short_conv
    (256, 8, 4)
    """

    model_type = "eattn"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 - Trainer adds a list

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int | None = None
    intermediate_size: int | None = None
    mixer: str | None = None
    short_conv: int | None = 4
    norm: str = "pre"
    max_position_embeddings: int | None = None
    causal: bool | None = None
    hidden_dropout_prob: float = 0.0
    classifier_dropout: float | None = None
    layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02
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
        block = self.block(causal=self.causal is not False)  # checks the remaining fields
        if self.mixer == "aft" and self.max_position_embeddings is None:
            raise ValueError(
                "mixer 'aft' has learned biases for a fixed number of positions: set"
                " max_position_embeddings, the length of the longest text"
            )
        try:
            with torch.device("meta"):
                TransformerBlock(block)
        except ValueError as error:
            raise ValueError(
                f"mixer {block.mixer!r} cannot be built: {error} (dim is hidden_size, heads is"
                " num_attention_heads)"
            ) from None
        super().__post_init__(**kwargs)

    def mixer_for(self, *, causal: bool) -> str:
        """Return the mixer, or the default one of a causal or non-causal model."""
        return self.mixer or (CAUSAL_MIXER if causal else FULL_MIXER)

    def block(self, *, causal: bool) -> TransformerConfig:
        """Return the configuration of the blocks."""
        return TransformerConfig(
            dim=self.hidden_size,
            depth=self.num_hidden_layers,
            mixer=self.mixer_for(causal=causal),
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
        """Load a configuration, and raise if it belongs to a model of another type."""
        kind = config_dict.get("model_type", cls.model_type)
        if kind != cls.model_type:
            raise ValueError(
                f"the configuration is for a model of type {kind!r}, not {cls.model_type!r}:"
                " load it with its own class or with an Auto class"
            )
        # Without a mixer, the file is of version 0.1, whose default was ea-6 for all models.
        config_dict = {"mixer": FULL_MIXER} | config_dict
        positions = config_dict.get("max_position_embeddings")
        if config_dict["mixer"] != "aft" or positions is not None:
            return super().from_dict(config_dict, **kwargs)
        # Version 0.1 saved aft without positions, with biases for AFT_LEN tokens.
        loaded = super().from_dict(config_dict | {"mixer": None}, **kwargs)
        (loaded[0] if isinstance(loaded, tuple) else loaded).mixer = "aft"
        return loaded


def _divisor(hidden_size: int) -> int:
    return next(heads for heads in range(MAX_HEADS, 0, -1) if hidden_size % heads == 0)
