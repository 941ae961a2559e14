"""The model without a head: embeddings, blocks of `eattn.nn` and a layer norm."""

import copy
import re
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import can_return_tuple

from eattn.distributed import current_shard
from eattn.hf.cache import EACache, EACacheLayer
from eattn.hf.config import EAConfig
from eattn.hf.inputs import (
    COLLATOR,
    check_cache,
    check_ids,
    key_mask_from,
    offsets_from,
    positions_from,
)
from eattn.nn import TransformerBlock
from eattn.nn.base import check_input
from eattn.nn.block import RENAMED
from eattn.ops.checks import is_readable

# Input of the first block, key_mask, cu_seqlens, cache
Prepared = tuple[Tensor, Tensor | None, Tensor | None, EACache | None]


class EALayer(GradientCheckpointingLayer, TransformerBlock):
    """A Transformer block that keeps its state in a layer of the cache."""

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        past_key_values: EACacheLayer | None = None,
    ) -> Tensor:
        if past_key_values is None:
            return TransformerBlock.forward(self, x, key_mask=key_mask, cu_seqlens=cu_seqlens)
        if past_key_values.is_recording:
            x = check_input(x, key_mask, self.config.dim)
            return self._add(x, past_key_values.read(self.mixer, self._mixer_input(x), key_mask))
        if x.shape[1] == 1 and key_mask is None:
            y, state = self.step(x.squeeze(1), past_key_values.state)
            y = y.unsqueeze(1)
        else:
            options: Any = dict(key_mask=key_mask, state=past_key_values.state)
            y, state = TransformerBlock.forward(self, x, **options, return_state=True)
        past_key_values.update(state)
        return y


class EAPreTrainedModel(PreTrainedModel):
    """Base class of the models: weight initialisation and the options that `transformers` reads.

    Parameters
    ----------
    config : EAConfig
        Configuration.
    """

    config: EAConfig
    config_class = EAConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("EALayer",)
    _skip_keys_device_placement = ("past_key_values",)
    _causal = True  # default of config.causal

    def __init__(self, config: EAConfig, *args: Any, **kwargs: Any) -> None:
        if not isinstance(config, EAConfig):
            raise TypeError(f"config must be an EAConfig, got {type(config).__name__}")
        # Set what the class chooses, so that a saved model has definite values.
        config = copy.deepcopy(config) if None in (config.causal, config.mixer) else config
        if config.causal is None:
            config.causal = self._causal
        config.mixer = config.mixer_for(causal=config.causal)
        super().__init__(config, *args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if not isinstance(module, EALayer):
            super()._init_weights(module)
            return
        # Initialise blocks as in eattn.nn; init.copy_ keeps weights that were loaded.
        fresh = TransformerBlock(module.config).state_dict()
        for name, tensor in module.state_dict(keep_vars=True).items():
            init.copy_(tensor, fresh[name].to(tensor.device, tensor.dtype))

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # By default, transformers skips entire layers of custom code if any weight was loaded. Ours
        # uses `init`, which skips loaded weights one by one.
        super()._initialize_weights(module)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any
    ) -> Any:
        """Load a saved model, and raise if its weights contain NaN."""
        given = kwargs.pop("key_mapping", None) or {}
        renamed = {re.escape(old): new for old, new in RENAMED.items()}
        loaded = super().from_pretrained(
            pretrained_model_name_or_path, *model_args, key_mapping=renamed | given, **kwargs
        )
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        if not given:
            model._weight_conversions = []  # save_pretrained writes the new names
        if (name := nan_weight(model)) is not None:
            raise ValueError(
                f"{pretrained_model_name_or_path}: the weight {name} contains NaN;"
                " training probably diverged"
            )
        return loaded


class EAModel(EAPreTrainedModel):
    """Language model without a head, tokens [B, L] -> hidden states [B, L, hidden_size].

    Parameters
    ----------
    config : EAConfig
        Configuration.

    Examples
    --------
    >>> model = EAModel(EAConfig(vocab_size=99, hidden_size=16, num_hidden_layers=2))
    >>> model(torch.tensor([[1, 2, 3]])).last_hidden_state.shape
    torch.Size([1, 3, 16])
    """

    def __init__(self, config: EAConfig) -> None:
        super().__init__(config)
        config = self.config
        block = config.block(causal=bool(config.causal))
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed_positions = None
        if config.max_position_embeddings is not None:
            self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList(EALayer(block) for _ in range(config.num_hidden_layers))
        # Applied after the last block with Pre-LN, before the first one with Post-LN as in BERT.
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embed_tokens = value  # type: ignore[assignment]

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: EACache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        cu_seqlens: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Compute hidden states.

        Inside `eattn.distributed.sequence_parallel`, the tokens are this rank's shard.

        Parameters
        ----------
        input_ids : int Tensor, shape (B, L), optional
            Tokens. Give either these or `inputs_embeds`.
        attention_mask : Tensor, shape (B, L) or (B, seen + L), optional
            0 for padding, which may be anywhere and is never read; 1 for tokens.
        position_ids : int Tensor, shape (B, L), optional
            Positions. Where they restart, a new packed sequence begins.
        past_key_values : EACache, optional
            Cache of the tokens before, which is updated in place.
        inputs_embeds : Tensor, shape (B, L, hidden_size), optional
            Embedded tokens.
        use_cache : bool, optional
            Return a cache; `config.use_cache` in evaluation mode by default.
        output_hidden_states : bool, optional
            Return the inputs of all blocks and the last hidden state.
        cu_seqlens : int32 Tensor, shape (n + 1,), optional
            Offsets of sequences packed in one row. Cannot be combined with `attention_mask` or
            `past_key_values`.
        **kwargs
            `cu_seq_lens_q` is read as `cu_seqlens`; others are ignored.

        Returns
        -------
        output : BaseModelOutputWithPast
        """

        def prepare() -> Prepared:
            return self._prepare(
                self._embed(input_ids, inputs_embeds),
                attention_mask,
                position_ids,
                past_key_values,
                use_cache,
                kwargs.get(COLLATOR) if cu_seqlens is None else cu_seqlens,
            )

        shard = current_shard()
        made = prepare() if shard is None else shard.agree(lambda: (prepare(), {}))
        x, key_mask, offsets, cache = made
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        x, every = self._blocks(x, key_mask, offsets, cache, bool(output_hidden_states))
        if cache is not None:
            cache.advance(key_mask, x)
        return BaseModelOutputWithPast(
            last_hidden_state=x, past_key_values=cache, hidden_states=every
        )

    def _prepare(
        self,
        x: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        past_key_values: EACache | None,
        use_cache: bool | None,
        cu_seqlens: Tensor | None,
    ) -> Prepared:
        if current_shard() is not None:
            if attention_mask is not None or past_key_values is not None:
                raise ValueError(
                    "attention_mask and past_key_values cannot be used inside sequence_parallel:"
                    " pack sequences with cu_seqlens instead"
                )
            use_cache = False
        cache = self._cache(past_key_values, use_cache, x)
        key_mask = key_mask_from(attention_mask, x, 0 if cache is None else cache.seen)
        if cu_seqlens is not None and (attention_mask is not None or past_key_values is not None):
            raise ValueError("cu_seqlens cannot be combined with attention_mask or past_key_values")
        if cu_seqlens is not None or (attention_mask is None and past_key_values is None):
            cu_seqlens = offsets_from(cu_seqlens, position_ids, x.shape[0])
            cache = None if cu_seqlens is not None else cache
        x = self._add_positions(x, position_ids, key_mask, cu_seqlens, cache)
        return x, key_mask, cu_seqlens, cache

    def _blocks(
        self,
        x: Tensor,
        key_mask: Tensor | None,
        cu_seqlens: Tensor | None,
        cache: EACache | None,
        keep: bool,
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Return the last hidden state and, if `keep` is set, all hidden states."""
        shape, every = x.shape, []
        for i, layer in enumerate(self.layers):
            every.append(x)
            if cu_seqlens is not None:
                x = x.reshape(1, -1, shape[2])  # concatenate the rows; each begins a sequence
            kept = None if cache is None else cache.layers[i]
            x = layer(x, key_mask=key_mask, cu_seqlens=cu_seqlens, past_key_values=kept)
            if cu_seqlens is not None:
                x = x.view(shape)
        if self.config.norm == "pre":
            x = self.norm(x)
        return x, (*every, x) if keep else None

    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass exactly one of input_ids and inputs_embeds")
        if input_ids is not None:
            check_ids(input_ids, self.embed_tokens.weight.shape[0])
            x: Tensor = self.embed_tokens(input_ids)
            return x
        assert inputs_embeds is not None
        if inputs_embeds.dim() != 3 or not inputs_embeds.shape[1]:
            raise ValueError(
                "inputs_embeds must be [B, L, hidden_size] with at least one token,"
                f" got shape {tuple(inputs_embeds.shape)}"
            )
        return inputs_embeds

    def _cache(self, given: EACache | None, use_cache: bool | None, x: Tensor) -> EACache | None:
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if given is not None:
            if not self.config.causal:
                raise ValueError("past_key_values needs a causal model: use EAConfig(causal=True)")
            return check_cache(given, len(self.layers), x.shape[0])
        if (
            not use_cache
            or not self.config.causal
            or (self.gradient_checkpointing and self.training)
        ):
            return None
        return EACache(len(self.layers))

    def _add_positions(
        self,
        x: Tensor,
        position_ids: Tensor | None,
        key_mask: Tensor | None,
        cu_seqlens: Tensor | None,
        cache: EACache | None,
    ) -> Tensor:
        """Return the input of the first block."""
        if self.embed_positions is not None:
            if position_ids is None:
                shard = current_shard()
                before = 0 if shard is None else shard.before
                position_ids = positions_from(key_mask, cu_seqlens, cache, x, before)
            self._check_positions(position_ids)
            x = x + self.embed_positions(position_ids)
        if self.config.norm == "post":
            x = self.norm(x)
        y: Tensor = self.dropout(x)
        return y

    def _check_positions(self, position_ids: Tensor) -> None:
        limit = self.config.max_position_embeddings
        if limit is None or not is_readable(position_ids):
            return
        if (last := int(position_ids.max())) >= limit:
            raise ValueError(
                f"the text is too long: token {last + 1} has no learned position, as"
                f" max_position_embeddings = {limit}; a model with None has no limit"
            )


def nan_weight(model: nn.Module) -> str | None:
    """Return the name of the first weight that contains NaN, or None."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and tensor.device.type != "meta" and tensor.isnan().any():
            return name
    return None
