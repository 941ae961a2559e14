"""The masked language model: every token sees all others, as in BERT."""

from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from eattn.hf.config import EAConfig
from eattn.hf.model import EAModel, EAPreTrainedModel


class EAForMaskedLM(EAPreTrainedModel):
    """Predicts the tokens that were hidden: gelu and a layer norm, then the embeddings again.

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
                "EAForMaskedLM needs causal=False, got an EAConfig with causal=True;"
                " from_pretrained(..., causal=False) changes it"
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
        """Logits [B, L, vocab_size]; with `labels` [B, L] the loss too, -100 being no label."""
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
