"""Language models of any mixer: train one on text, save it, generate text in constant memory.

`train_lm(text, LMConfig(...))` trains, `save` and `load` use the format of transformers, and
`stream` generates. Needs `pip install "eattn[hf]"`.
"""

import eattn.hf  # noqa: F401 - first: without transformers it says what to install
from eattn.lm.checkpoint_dir import load, save, train_to_dir
from eattn.lm.dataset import PackedDataset
from eattn.lm.generate import Sampling, stream
from eattn.lm.tokenizer import byte_tokenizer, train_bpe
from eattn.lm.training import LMConfig, TrainedLM, bits_per_byte, train_lm

__all__ = [
    "LMConfig",
    "PackedDataset",
    "Sampling",
    "TrainedLM",
    "bits_per_byte",
    "byte_tokenizer",
    "load",
    "save",
    "stream",
    "train_bpe",
    "train_lm",
    "train_to_dir",
]
