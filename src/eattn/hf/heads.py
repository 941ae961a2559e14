"""Models with a head: masked tokens, classes of texts or tokens, and question answering."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import (
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutputWithPast,
    TokenClassifierOutput,
)
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
    >>> config = EAConfig(vocab_size=99, hidden_size=16, num_hidden_layers=2, num_labels=3)
    >>> EAForSequenceClassification(config)(torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3])
    """

    accepts_loss_kwargs = False  # the Trainer then divides the loss when it accumulates gradients
    _causal = False

    def __init__(self, config: EAConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = EAModel(self.config)
        self.dropout = _classifier_dropout(config)
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
        _check_whole_texts(type(self).__name__, kwargs)
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


class EAForTokenClassification(EAPreTrainedModel):
    """Classifier of every token, such as a named-entity tagger.

    Parameters
    ----------
    config : EAConfig
        Configuration, with `num_labels`.

    Examples
    --------
    >>> config = EAConfig(vocab_size=99, hidden_size=16, num_hidden_layers=2, num_labels=5)
    >>> EAForTokenClassification(config)(torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3, 5])
    """

    _causal = False

    def __init__(self, config: EAConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = EAModel(self.config)
        self.dropout = _classifier_dropout(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

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
    ) -> TokenClassifierOutput:
        """Compute logits and, with `labels`, the loss.

        Arguments that are not listed are those of `EAModel.forward`.

        Parameters
        ----------
        labels : int Tensor, shape (B, L), optional
            Class of each token; -100 for tokens without a label, such as padding.
        **kwargs
            Options of the loss function, such as `num_items_in_batch`.

        Returns
        -------
        output : TokenClassifierOutput
            `logits` have shape (B, L, num_labels).
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=False,
            output_hidden_states=output_hidden_states,
            cu_seqlens=cu_seqlens,
            return_dict=True,
        )
        logits = self.score(self.dropout(outputs.last_hidden_state))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.config, **kwargs)
        return TokenClassifierOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states)


class EAForQuestionAnswering(EAPreTrainedModel):
    """Extractive question answering: logits for the first and last token of the answer.

    Padding gets the lowest possible logits, so it changes neither the answer nor the loss.

    Parameters
    ----------
    config : EAConfig
        Configuration.

    Examples
    --------
    >>> model = EAForQuestionAnswering(EAConfig(vocab_size=99, hidden_size=16, num_hidden_layers=2))
    >>> model(torch.tensor([[1, 2, 3]])).start_logits.shape
    torch.Size([1, 3])
    """

    _causal = False

    def __init__(self, config: EAConfig) -> None:
        super().__init__(config)
        self.model = EAModel(self.config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput:
        """Compute logits and, with positions of the answers, the loss.

        Arguments that are not listed are those of `EAModel.forward`.

        Parameters
        ----------
        start_positions, end_positions : int Tensor, shape (B,), optional
            Index of the first and of the last token of each answer. Indices outside the text are
            ignored.
        **kwargs
            Options of the loss function.

        Returns
        -------
        output : QuestionAnsweringModelOutput
            `start_logits` and `end_logits` have shape (B, L).
        """
        _check_whole_texts(type(self).__name__, kwargs)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=False,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        x = outputs.last_hidden_state
        logits = self.qa_outputs(x)
        if (mask := key_mask_from(attention_mask, x, 0)) is not None:
            logits = logits.masked_fill(~mask.unsqueeze(-1), torch.finfo(logits.dtype).min)
        start, end = (part.contiguous() for part in logits.unbind(-1))
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start, end, start_positions, end_positions, **kwargs)
        return QuestionAnsweringModelOutput(
            loss=loss, start_logits=start, end_logits=end, hidden_states=outputs.hidden_states
        )


def _classifier_dropout(config: EAConfig) -> nn.Dropout:
    rate = config.classifier_dropout
    return nn.Dropout(config.hidden_dropout_prob if rate is None else rate)


def _check_whole_texts(name: str, options: dict[str, Any]) -> None:
    """Raise if rows are not whole texts; a head with one result per text needs them."""
    check_not_sharded(name)
    if options.get("cu_seqlens") is not None:
        raise ValueError(f"{name} has one result per text and cannot use cu_seqlens: pad the texts")
