"""Language models from text to text: learn one of any mixer, and have it write on.

`learn(text, Settings(...))` trains, `folder` keeps the result as `transformers` does, and `stream`
generates in memory that does not grow. It needs `pip install "eattn[hf]"`.
"""

import eattn.hf  # noqa: F401 - first: without transformers it says what to install
from eattn.lm.checkpoint_dir import load, save
from eattn.lm.generating import Sampling, stream
from eattn.lm.settings import Settings
from eattn.lm.tokenizer import byte_tokenizer, train_bpe
from eattn.lm.training import Corpus, Learnt, bits_per_byte, learn

__all__ = [
    "Corpus",
    "Learnt",
    "Sampling",
    "Settings",
    "bits_per_byte",
    "byte_tokenizer",
    "learn",
    "load",
    "save",
    "stream",
    "train_bpe",
]
