"""Models with a head: masked language model and sequence classifier."""

from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput, SequenceClassifierOutputWithPast
from transformers.utils.generic import can_return_tuple

from eattn.distributed.context import check_not_sharded
from eattn.hf.cache import EACache
from eattn.hf.config import EAConfig
from eattn.hf.inputs import key_mask_from
from eattn.hf.model import EAModel, EAPreTrainedModel
from eattn.nn.padding import last_valid, mean_valid


class EAForMaskedLM(EAPreTrainedModel):
    """Masked language model, with BERT's head: linear, GELU, layer norm and output embeddings.

    Parameters
    ----------
    config : EAConfig
        Configuration; `causal` must be False or None.

    Examples
    --------
    >>> import torch
    >>> model = EAForMaskedLM(EAConfig(vocab_size=99, hidden_size=16, num_hidden_layers=2))
    >>> model(torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3, 99])
    """

    _tied_weights_keys = {"decoder.weight": "model.embed_tokens.weight"}  # noqa: RUF012
    _causal = False

    def __init__(self, config: EAConfig) -> None:
        super().__init__(config)
        if self.config.causal:
            raise ValueError(
                "EAForMaskedLM needs causal=False, got an EAConfig with causal=True:"
                " load the model with from_pretrained(..., causal=False)"
            )
        dim = config.hidden_size
        self.model = EAModel(self.config)
        norm = nn.LayerNorm(dim, eps=config.layer_norm_eps)
        self.transform = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), norm)
        self.decoder = nn.Linear(dim, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.decoder

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.decoder = new_embeddings  # type: ignore[assignment]

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        cu_seqlens: Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Compute logits and, with `labels`, the loss.

        Arguments that are not listed are those of `EAModel.forward`.

        Parameters
        ----------
        labels : int Tensor, shape (B, L), optional
            Tokens to predict; -100 for positions without a label.
        **kwargs
            Options of the loss function, such as `num_items_in_batch`.

        Returns
        -------
        output : MaskedLMOutput
            `logits` have shape (B, L, vocab_size).
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
            cu_seqlens=cu_seqlens,
            return_dict=True,
        )
        logits = self.decoder(self.transform(outputs.last_hidden_state))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states)


class EAForSequenceClassification(EAPreTrainedModel):
    """Sequence classifier or regressor on the mean token; on the last token if causal.

    Only `attention_mask` marks padding, on either side; the config needs no padding token.

    Parameters
    ----------
    config : EAConfig
        Configuration, with `num_labels` and optionally `problem_type`.

    Examples
    --------
    >>> import torch
    >>> config = EAConfig(vocab_size=99, hidden_size=16, num_hidden_layers=2, num_labels=3)
    >>> EAForSequenceClassification(config)(torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3])
    """

    _causal = False

    def __init__(self, config: EAConfig) -> None:
        super().__init__(config)
        rate = config.classifier_dropout
        self.num_labels = config.num_labels
        self.model = EAModel(self.config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob if rate is None else rate)
        self.score = nn.Linear(config.hidden_size, config.num_labels)
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
        **kwargs: Any,
    ) -> SequenceClassifierOutputWithPast:
        """Compute logits and, with `labels`, the loss.

        Arguments that are not listed are those of `EAModel.forward`.

        Parameters
        ----------
        labels : Tensor, shape (B,) or (B, num_labels), optional
            Labels in the form that `config.problem_type` requires.
        **kwargs
            Ignored.

        Returns
        -------
        output : SequenceClassifierOutputWithPast
            `logits` have shape (B, num_labels).
        """
        check_not_sharded(type(self).__name__)
        seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        x = outputs.last_hidden_state
        mask = key_mask_from(attention_mask, x, seen)
        pooled = (last_valid if self.config.causal else mean_valid)(x, mask)
        logits = self.score(self.dropout(pooled))
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, pooled_logits=logits, config=self.config
            )
        return SequenceClassifierOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
        )
