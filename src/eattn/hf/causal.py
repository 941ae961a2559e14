"""Causal language model and its support for `generate`."""

from typing import Any, NoReturn

from torch import Tensor, nn
from transformers import GenerationMixin, LogitsProcessor
from transformers.generation.configuration_utils import GenerationMode
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from eattn.distributed import current_shard
from eattn.hf.cache import EACache
from eattn.hf.config import EAConfig
from eattn.hf.inputs import COLLATOR, check_cache, offsets_from
from eattn.hf.lookup import AdaptiveLookup
from eattn.hf.model import EAModel, EAPreTrainedModel, nan_weight

MODES = (
    GenerationMode.GREEDY_SEARCH,
    GenerationMode.SAMPLE,
    GenerationMode.BEAM_SEARCH,
    GenerationMode.BEAM_SAMPLE,
    GenerationMode.ASSISTED_GENERATION,
)


class EAForCausalLM(EAPreTrainedModel, GenerationMixin):
    """Causal language model, which generates with a cache of constant size (for most mixers).

    Parameters
    ----------
    config : EAConfig
        Configuration; `causal` must be True or None.

    Examples
    --------
    >>> import torch
    >>> model = EAForCausalLM(EAConfig(vocab_size=99, hidden_size=16, num_hidden_layers=2)).eval()
    >>> out = model(torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]]))
    >>> out.logits.shape, out.past_key_values.get_seq_length()
    (torch.Size([1, 3, 99]), 3)
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012
    _causal = True

    def __init__(self, config: EAConfig) -> None:
        super().__init__(config)
        if not self.config.causal:
            raise ValueError("EAForCausalLM needs causal=True, got an EAConfig with causal=False")
        self.model = EAModel(self.config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: EACache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        cu_seqlens: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Compute logits and, with `labels`, the loss.

        Arguments that are not listed are those of `EAModel.forward`.

        Parameters
        ----------
        labels : int Tensor, shape (B, L), optional
            The same tokens as `input_ids`, as labels are shifted here; -100 for tokens that are not
            predicted. The first token of a packed sequence is never predicted. Raises inside
            `sequence_parallel`, where the label of a shard's last token is on another rank.
        logits_to_keep : int or int Tensor, default 0
            Compute logits only for this many last tokens, or for these indices; 0 for all.
        **kwargs
            Options of the loss function, such as `num_items_in_batch`.

        Returns
        -------
        output : CausalLMOutputWithPast
            `logits` have shape (B, L, vocab_size).
        """
        if labels is not None and current_shard() is not None:
            raise ValueError(
                "labels cannot be used inside sequence_parallel, as the label of the last token is"
                " on another rank: shift them before sharding and compute the loss from the logits"
            )
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            cu_seqlens=cu_seqlens,
            return_dict=True,
            **{name: value for name, value in kwargs.items() if name == COLLATOR},
        )
        x = outputs.last_hidden_state
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(x[:, kept])
        loss = None
        if labels is not None:
            if attention_mask is None and past_key_values is None:
                offsets = cu_seqlens if cu_seqlens is not None else kwargs.get(COLLATOR)
                labels = _mask_starts(labels, offsets_from(offsets, position_ids, len(labels)))
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
        )

    # ---- generation ------------------------------------------------------------------------------

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: EACache | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        is_first_iteration: bool | None = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Prepare the inputs of one decoding step, with padding moved to the left in the first."""
        if isinstance(past_key_values, EACache) and past_key_values.seen:
            if is_first_iteration and next_sequence_length is None:
                # Assisted generation passes all tokens, including those that the cache has read.
                if attention_mask is None or attention_mask.shape[1] == input_ids.shape[1]:
                    next_sequence_length = input_ids.shape[1] - past_key_values.seen
            elif past_key_values.is_croppable and not is_first_iteration:
                drafts = (next_sequence_length or 1) - 1
                past_key_values.rollback = max(past_key_values.rollback, drafts)
        if next_sequence_length is not None and next_sequence_length < 1:
            raise ValueError(
                f"the cache has read {input_ids.shape[1] - next_sequence_length} tokens and"
                f" input_ids has {input_ids.shape[1]}: add at least one token that is not read yet"
            )
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=next_sequence_length,
            past_key_values=past_key_values,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            is_first_iteration=is_first_iteration,
            **kwargs,
        )
        if is_first_iteration and inputs.get("attention_mask") is not None:
            _move_padding_left(inputs)
        return inputs

    def _prepare_position_ids_for_generation(self, *args: Any) -> None:
        """Return None: the model counts valid tokens itself, with padding on either side."""

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        self._check_room(model_kwargs.get("attention_mask"), max_cache_length)
        kind = generation_config.cache_implementation
        if kind not in (None, "dynamic"):
            raise ValueError(
                f"cache_implementation must be omitted, got {kind!r}: the model only works with"
                " EACache, which it creates"
            )
        given = model_kwargs.get("past_key_values")
        if given is not None:
            check_cache(given, len(self.model.layers))
        elif generation_config.use_cache:
            model_kwargs["past_key_values"] = EACache(len(self.model.layers))
        if generation_config.is_assistant:  # its drafts may be removed
            cache = model_kwargs["past_key_values"]
            cache.activate_past_recording()
            cache.rollback = max(cache.rollback, generation_config.max_new_tokens + 2)

    def _check_room(self, attention_mask: Tensor | None, length: int) -> None:
        """Check that there are enough learned positions; padding does not need any."""
        limit = self.config.max_position_embeddings
        if attention_mask is not None:
            length -= int((attention_mask == 0).sum(1).min())
        if limit is not None and length > limit:
            raise ValueError(
                f"prompt and new tokens need {length} positions, but max_position_embeddings ="
                f" {limit}; a model with None has no limit"
            )

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise: `generate_batch` and other continuous batching need pages of keys and values."""
        raise ValueError(
            "EAForCausalLM does not support generate_batch and continuous batching, which store"
            " keys and values in pages: use generate with a padded batch"
        )

    def _get_deprecated_gen_repo(self, generation_mode: GenerationMode, *args: Any) -> Any:
        _check_mode(generation_mode)  # before transformers suggests to download custom code
        return super()._get_deprecated_gen_repo(generation_mode, *args)

    def _get_candidate_generator(self, *args: Any, **kwargs: Any) -> Any:
        config: Any = kwargs["generation_config"]
        for name in ("assistant_early_exit", "use_mtp", "speculation_type"):
            if getattr(config, name, None):
                raise ValueError(
                    f"EAForCausalLM does not support {name}: use prompt_lookup_num_tokens or"
                    " assistant_model"
                )
        generator: Any = super()._get_candidate_generator(*args, **kwargs)
        cache, drafts = kwargs["model_kwargs"]["past_key_values"], config.prompt_lookup_num_tokens
        if drafts is None:
            drafts = int(generator.num_assistant_tokens)
        else:
            generator = AdaptiveLookup(generator)
        cache.rollback = max(cache.rollback, drafts)
        return generator

    def _get_logits_processor(self, *args: Any, **kwargs: Any) -> Any:
        processors = super()._get_logits_processor(*args, **kwargs)
        processors.insert(0, _RaiseOnNaN(self))
        return processors


class _RaiseOnNaN(LogitsProcessor):
    """Raise on NaN logits: argmax would silently return token 0."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if bool(scores.isnan().any()):
            name = nan_weight(self.model)
            cause = f"the weight {name} contains NaN" if name else "probably due to an overflow"
            raise ValueError(f"the logits of the model are NaN: {cause}")
        return scores


def _check_mode(mode: GenerationMode) -> None:
    if mode not in MODES:
        raise ValueError(
            f"EAForCausalLM does not support {mode.value}:"
            f" use {', '.join(known.value for known in MODES)}"
        )


def _mask_starts(labels: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Remove the labels [B, L] of first tokens, which another sequence would predict."""
    if cu_seqlens is None:
        return labels
    starts = cu_seqlens[:-1].long()
    starts = starts[starts < labels.numel()]  # an empty last sequence starts beyond the labels
    return labels.flatten().index_fill(0, starts.to(labels.device), -100).view(labels.shape)


def _move_padding_left(inputs: dict[str, Any]) -> None:
    """Move padding to the left, so that the last column predicts the next token of each row."""
    tokens = inputs["input_ids"] if inputs.get("input_ids") is not None else inputs["inputs_embeds"]
    whole = inputs["attention_mask"]
    mask = whole[:, whole.shape[1] - tokens.shape[1] :] != 0
    empty = (~mask).all(1).nonzero().flatten().tolist()
    if empty:
        raise ValueError(
            f"attention_mask must have a valid token in every row, got none in row {empty[0]}"
        )
    if bool(mask[:, -1].all()):
        return
    order = mask.long().argsort(dim=1, stable=True)
    inputs["attention_mask"] = mask.take_along_dim(order, 1).to(whole.dtype)
    for name in ("input_ids", "position_ids"):
        if inputs.get(name) is not None:
            inputs[name] = inputs[name].expand_as(order).take_along_dim(order, 1)
    if inputs.get("inputs_embeds") is not None:
        inputs["inputs_embeds"] = inputs["inputs_embeds"].take_along_dim(order.unsqueeze(-1), 1)
