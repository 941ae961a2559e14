"""Tokenizers: bytes or byte-pair encoding (BPE), and decoding of tokens as they come.

Both are byte-level BPEs of the package `tokenizers` in GPT-2's alphabet; bytes are a BPE without
merges. Token 256 ends a text in both.
"""

import codecs
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eattn.data.text import Document

try:
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast
except ImportError as error:
    raise ImportError(
        f'eattn.lm needs tokenizers and transformers: pip install "eattn[hf]" ({error})'
    ) from error

END = "<|endoftext|>"
BYTES = 256
ENCODE_BATCH = 64  # documents


@cache
def alphabet() -> dict[str, int]:
    """Return the byte of each character of GPT-2's alphabet: itself if printable, else 256 on.

    >>> alphabet()["A"], alphabet()["Ġ"]
    (65, 32)
    """
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    seen += range(ord("®"), ord("ÿ") + 1)
    hidden = [byte for byte in range(BYTES) if byte not in seen]
    shown = {chr(byte): byte for byte in seen}
    shown |= {chr(BYTES + place): byte for place, byte in enumerate(hidden)}
    return dict(sorted(shown.items(), key=lambda pair: pair[1]))


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose token n is byte n.

    Examples
    --------
    >>> byte_tokenizer()("añ")["input_ids"]
    [97, 195, 177]
    """
    tokenizer = Tokenizer(BPE(vocab=alphabet(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return _finished(tokenizer)


def train_bpe(documents: Sequence[Document], vocab: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer of `vocab` tokens: all bytes, the end of a text, and merges."""
    if vocab <= BYTES + 1:
        raise ValueError(
            f"vocab must be above {BYTES + 1}, the number of bytes and the end, got {vocab}"
        )
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # No special tokens of the trainer: they would come before the bytes.
    trainer = BpeTrainer(
        vocab_size=vocab - 1, initial_alphabet=list(alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator((_decoded(document) for document in documents), trainer)
    return _finished(_with_bytes_first(tokenizer))


def encode(
    tokenizer: PreTrainedTokenizerFast, documents: Sequence[Document]
) -> Iterator[NDArray[np.int64]]:
    """Yield the tokens of each document."""
    if len(tokenizer) == BYTES + 1:  # bytes, which may be no UTF-8
        for document in documents:
            yield np.frombuffer(document.content, np.uint8).astype(np.int64)
        return
    plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    plain.encode_special_tokens = True  # their names in a text are plain text
    for at in range(0, len(documents), ENCODE_BATCH):
        texts = [_decoded(document) for document in documents[at : at + ENCODE_BATCH]]
        for encoded in plain.encode_batch(texts, add_special_tokens=False):
            yield np.array(encoded.ids, np.int64)


def spelling(tokenizer: PreTrainedTokenizerFast) -> list[bytes] | None:
    """Return the bytes of every token, empty for special ones; None if it is not byte-level."""
    if not isinstance(getattr(tokenizer.backend_tokenizer, "decoder", None), decoders.ByteLevel):
        return None
    special = set(tokenizer.all_special_tokens)
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return [b"" if name in special else _spelled(name) for name in names]


def decode(tokenizer: Any, tokens: Iterable[int]) -> Iterator[str]:
    """Yield the text of tokens as they come, in whole characters."""
    spelled = spelling(tokenizer)
    if spelled is None:  # not a byte-level tokenizer
        stream = decoders.DecodeStream(skip_special_tokens=True)
        for token in tokens:
            if text := stream.step(tokenizer.backend_tokenizer, token):
                yield text
        return
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        # A model may have more tokens than its tokenizer.
        if text := decoder.decode(spelled[token] if token < len(spelled) else b""):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text


def _finished(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.decoder = decoders.ByteLevel()
    special: Any = dict(bos_token=END, eos_token=END, pad_token=END)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special
    )


def _with_bytes_first(trained: Tokenizer) -> Tokenizer:
    """Renumber tokens: 0 to 255 for bytes, 256 for the end, then merges."""
    model = json.loads(trained.to_str())["model"]
    names = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merged = [name for name in names if name not in alphabet()]
    vocab = alphabet() | {END: BYTES}
    vocab |= {name: BYTES + 1 + place for place, name in enumerate(merged)}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[tuple(pair) for pair in model["merges"]]))
    tokenizer.pre_tokenizer = trained.pre_tokenizer
    return tokenizer


def _spelled(name: str) -> bytes:
    known = alphabet()
    if known.keys() >= set(name):
        return bytes(known[letter] for letter in name)
    return name.encode()  # an added token


def _decoded(document: Document) -> str:
    try:
        return document.content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{document.name} is not UTF-8 (byte {error.start}), which --tokenizer bpe needs:"
            " --tokenizer bytes takes any file"
        ) from None
