"""Hugging Face models and cache; requires `pip install "eattn[hf]"`.

Importing this package registers the models, so that `AutoModelForCausalLM` and the other Auto
classes accept an `EAConfig` or a folder with a saved model.

Examples
--------
>>> import torch
>>> from eattn.hf import EAConfig, EAForCausalLM
>>> model = EAForCausalLM(EAConfig(vocab_size=256, hidden_size=32, num_hidden_layers=2)).eval()
>>> model.generate(torch.tensor([[72, 105]]), max_new_tokens=5, do_sample=False).shape
torch.Size([1, 7])
"""

try:
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        AutoModelForQuestionAnswering,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
    )
    from transformers.cache_utils import LinearAttentionCacheLayerMixin  # noqa: F401 - new in 5
except ImportError as error:
    raise ImportError(
        f'eattn.hf needs transformers >= 5.22: pip install "eattn[hf]" ({error})'
    ) from error

from eattn.hf.cache import EACache
from eattn.hf.causal import EAForCausalLM
from eattn.hf.config import EAConfig
from eattn.hf.heads import (
    EAForMaskedLM,
    EAForQuestionAnswering,
    EAForSequenceClassification,
    EAForTokenClassification,
)
from eattn.hf.model import EAModel, EAPreTrainedModel
from eattn.hf.prefix import PrefixCache

AutoConfig.register(EAConfig.model_type, EAConfig, exist_ok=True)
AutoModel.register(EAConfig, EAModel, exist_ok=True)
AutoModelForCausalLM.register(EAConfig, EAForCausalLM, exist_ok=True)
AutoModelForMaskedLM.register(EAConfig, EAForMaskedLM, exist_ok=True)
AutoModelForQuestionAnswering.register(EAConfig, EAForQuestionAnswering, exist_ok=True)
AutoModelForSequenceClassification.register(EAConfig, EAForSequenceClassification, exist_ok=True)
AutoModelForTokenClassification.register(EAConfig, EAForTokenClassification, exist_ok=True)

__all__ = [
    "EACache",
    "EAConfig",
    "EAForCausalLM",
    "EAForMaskedLM",
    "EAForQuestionAnswering",
    "EAForSequenceClassification",
    "EAForTokenClassification",
    "EAModel",
    "EAPreTrainedModel",
    "PrefixCache",
]
