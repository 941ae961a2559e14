"""A label, or a number, for a whole text."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutputWithPast
from transformers.utils.generic import can_return_tuple

from eattn.distributed.context import check_not_sharded
from eattn.hf.cache import EACache
from eattn.hf.config import EAConfig
from eattn.hf.inputs import key_mask_of
from eattn.hf.model import EAModel, EAPreTrainedModel


class EAForSequenceClassification(EAPreTrainedModel):
    """Logits from the mean of a text's tokens, or, of a causal model, from the last of them.

    Padding is what `attention_mask` says, on either side; no padding token need be defined.

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
        """Logits [B, num_labels]; the loss is chosen by `config.problem_type`, as everywhere."""
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
        mask = key_mask_of(attention_mask, x, seen)
        pooled = (_last if self.config.causal else _mean)(x, mask)
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


def _mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Over the tokens of each row [B, L, D] -> [B, D]; 0 where there is none."""
    if mask is None:
        return x.mean(1)
    total = torch.where(mask.unsqueeze(-1), x, 0.0).sum(1)
    return total / mask.sum(1, keepdim=True).clamp(min=1)


def _last(x: Tensor, mask: Tensor | None) -> Tensor:
    """The last token of each row [B, L, D] -> [B, D], wherever the padding is."""
    if mask is None:
        return x[:, -1]
    at = torch.arange(x.shape[1], device=x.device) * mask
    return x[torch.arange(len(x), device=x.device), at.argmax(1)]
