"""The causal language model, and what `generate` needs to know of it."""

from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin, LogitsProcessor
from transformers.generation.configuration_utils import GenerationMode
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from eattn.distributed import current_shard
from eattn.hf.cache import ROLLBACK, EACache
from eattn.hf.config import EAConfig
from eattn.hf.inputs import COLLATOR, offsets_of
from eattn.hf.model import EAModel, EAPreTrainedModel, not_a_number

MODES = (
    GenerationMode.GREEDY_SEARCH,
    GenerationMode.SAMPLE,
    GenerationMode.BEAM_SEARCH,
    GenerationMode.BEAM_SAMPLE,
)


class EAForCausalLM(EAPreTrainedModel, GenerationMixin):
    """Predicts the next token, and generates with a cache whose size does not grow with the text.

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
        """Logits [B, L, vocab_size]; with `labels` [B, L] the loss too, -100 being no label.

        Labels are shifted here. No token predicts the first one of another packed sequence.
        Inside `eattn.distributed.sequence_parallel` they cannot be given: the label of a shard's
        last token is on another rank.
        """
        if labels is not None and current_shard() is not None:
            raise ValueError(
                "labels cannot be given inside sequence_parallel, as the label of the last token is"
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
                labels = _apart(labels, offsets_of(offsets, position_ids, len(labels)))
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
        if next_sequence_length is not None and next_sequence_length < 1:
            raise ValueError(
                f"the cache has read {input_ids.shape[1] - next_sequence_length} tokens already and"
                f" input_ids has {input_ids.shape[1]}: give at least one token after them"
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
        """None: the model counts real tokens itself, which is right for padding on any side."""

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
                f"cache_implementation must be left out, got {kind!r}: this model has a cache of"
                " its own, which needs no room for tokens to come"
            )
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache:
            model_kwargs["past_key_values"] = EACache(len(self.model.layers))

    def _check_room(self, attention_mask: Tensor | None, length: int) -> None:
        """That the last token to be read has a learned position; padding takes up none."""
        limit = self.config.max_position_embeddings
        if attention_mask is not None:
            length -= int((attention_mask == 0).sum(1).min())
        if limit is not None and length > limit:
            raise ValueError(
                f"prompt and new tokens need {length} positions, and max_position_embeddings ="
                f" {limit}; a model without positions (None) has no limit"
            )

    def _get_deprecated_gen_repo(self, generation_mode: GenerationMode, *args: Any) -> Any:
        _check_mode(generation_mode)  # before the library offers to download one
        return super()._get_deprecated_gen_repo(generation_mode, *args)

    def _get_logits_processor(self, *args: Any, **kwargs: Any) -> Any:
        processors = super()._get_logits_processor(*args, **kwargs)
        processors.insert(0, _RefuseNaN(self))
        return processors


class _RefuseNaN(LogitsProcessor):
    """The largest of NaNs is token 0, without a word; this has one."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if bool(scores.isnan().any()):
            name = not_a_number(self.model)
            why = f"the weight {name} holds NaN" if name else "no weight does: an overflow?"
            raise ValueError(f"the model's logits are NaN; {why}")
        return scores


def _check_mode(mode: GenerationMode) -> None:
    if mode == GenerationMode.ASSISTED_GENERATION:
        raise ValueError(f"assisted generation does not work with EAForCausalLM: {ROLLBACK}")
    if mode not in MODES:
        raise ValueError(
            f"EAForCausalLM generates by {', '.join(known.value for known in MODES)},"
            f" not by {mode.value}"
        )


def _apart(labels: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Labels [B, L] without those that the last token of another sequence would predict."""
    if cu_seqlens is None:
        return labels
    starts = cu_seqlens[:-1].long()
    starts = starts[starts < labels.numel()]  # an empty sequence at the end starts there
    return labels.flatten().index_fill(0, starts.to(labels.device), -100).view(labels.shape)


def _move_padding_left(inputs: dict[str, Any]) -> None:
    """Put each row's tokens last, where the next one is predicted; the model skips padding."""
    tokens = inputs["input_ids"] if inputs.get("input_ids") is not None else inputs["inputs_embeds"]
    whole = inputs["attention_mask"]
    mask = whole[:, whole.shape[1] - tokens.shape[1] :] != 0
    empty = (~mask).all(1).nonzero().flatten().tolist()
    if empty:
        raise ValueError(f"attention_mask leaves no token to go on from in row {empty[0]}")
    if bool(mask[:, -1].all()):
        return
    order = mask.long().argsort(dim=1, stable=True)
    inputs["attention_mask"] = mask.take_along_dim(order, 1).to(whole.dtype)
    for name in ("input_ids", "position_ids"):
        if inputs.get(name) is not None:
            inputs[name] = inputs[name].expand_as(order).take_along_dim(order, 1)
    if inputs.get("inputs_embeds") is not None:
        inputs["inputs_embeds"] = inputs["inputs_embeds"].take_along_dim(order.unsqueeze(-1), 1)
