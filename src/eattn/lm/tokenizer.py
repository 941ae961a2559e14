"""Text as tokens: bytes, or pairs of them merged again and again (BPE); and back, as it comes.

Both are tokenizers of `tokenizers`, whose tokens spell bytes in GPT-2's alphabet: bytes are a BPE
without merges. Token 256 is the end of a text in both.
"""

import codecs
import json
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Protocol

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
AT_ONCE = 64  # documents that are encoded side by side


@cache
def alphabet() -> dict[str, int]:
    """GPT-2's character for each byte: itself if it can be seen, else one from 256 on.

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
    """Token n is byte n.

    >>> byte_tokenizer()("añ")["input_ids"]
    [97, 195, 177]
    """
    tokenizer = Tokenizer(BPE(vocab=alphabet(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return _finished(tokenizer)


def train_bpe(documents: Sequence[Document], vocab: int) -> PreTrainedTokenizerFast:
    """A tokenizer of `vocab` tokens: all bytes, the end of a text, and the commonest merges."""
    if vocab <= BYTES + 1:
        raise ValueError(
            f"vocab must be above {BYTES + 1}, as all bytes and the end are tokens, got {vocab}"
        )
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # Not the trainer's own special tokens: they would come before the bytes.
    trainer = BpeTrainer(
        vocab_size=vocab - 1, initial_alphabet=list(alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator((_decoded(document) for document in documents), trainer)
    return _finished(_with_bytes_first(tokenizer))


def encode(
    tokenizer: PreTrainedTokenizerFast, documents: Sequence[Document]
) -> Iterator[NDArray[np.int64]]:
    """The tokens of each document."""
    if len(tokenizer) == BYTES + 1:  # bytes, which need not be UTF-8
        for document in documents:
            yield np.frombuffer(document.content, np.uint8).astype(np.int64)
        return
    plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    plain.encode_special_tokens = True  # a text may spell them: there they are not special
    for at in range(0, len(documents), AT_ONCE):
        texts = [_decoded(document) for document in documents[at : at + AT_ONCE]]
        for encoded in plain.encode_batch(texts, add_special_tokens=False):
            yield np.array(encoded.ids, np.int64)


def spelling(tokenizer: PreTrainedTokenizerFast) -> list[bytes] | None:
    """The bytes of every token, none for special ones; None if tokens do not spell bytes."""
    if not isinstance(getattr(tokenizer.backend_tokenizer, "decoder", None), decoders.ByteLevel):
        return None
    special = set(tokenizer.all_special_tokens)
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return [b"" if name in special else _spelled(name) for name in names]


class Writer(Protocol):
    """Makes text of tokens as they come."""

    def write(self, token: int) -> str:
        """What can be read of it by now; it may take more tokens to make a character."""
        ...

    def rest(self) -> str:
        """What is left at the end."""
        ...


def writer(tokenizer: Any) -> Writer:
    """One for this tokenizer."""
    spelled = spelling(tokenizer)
    return _Decoding(tokenizer) if spelled is None else _Spelling(spelled)


class _Spelling:
    """Bytes of tokens, decoded as UTF-8 whenever a character is whole."""

    def __init__(self, spelled: list[bytes]) -> None:
        self.spelled = spelled
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, token: int) -> str:
        # A model may have room for more tokens than there are.
        return self.decoder.decode(self.spelled[token] if token < len(self.spelled) else b"")

    def rest(self) -> str:
        return self.decoder.decode(b"", final=True)


class _Decoding:
    """Of any other tokenizer, as the library does it."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer.backend_tokenizer
        self.stream = decoders.DecodeStream(skip_special_tokens=True)

    def write(self, token: int) -> str:
        return self.stream.step(self.tokenizer, token) or ""

    def rest(self) -> str:
        return ""


def _finished(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.decoder = decoders.ByteLevel()
    special: Any = dict(bos_token=END, eos_token=END, pad_token=END)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special
    )


def _with_bytes_first(trained: Tokenizer) -> Tokenizer:
    """The same tokenizer, with the tokens 0 to 255 for bytes, 256 for the end, and then merges."""
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
    return name.encode()  # one that was added as it is


def _decoded(document: Document) -> str:
    try:
        return document.content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{document.name} is not UTF-8 (byte {error.start}), which --tokenizer bpe needs:"
            " --tokenizer bytes takes any file"
        ) from None
