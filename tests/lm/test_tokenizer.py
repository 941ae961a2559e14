"""Tokenizers: bytes and BPE decode to the text they encoded, at once or as tokens come."""

import json

import numpy as np
import pytest

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from text_helpers import documents, text
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from eattn.data.text import Document
from eattn.lm.tokenizer import BYTES, END, byte_tokenizer, decode, encode, spelling, train_bpe

ODD = "naïve 日本 🙂\r\n\ttab\x00 end"


@pytest.fixture(scope="module", params=["bytes", "bpe"])
def tokenizer(request):
    return byte_tokenizer() if request.param == "bytes" else train_bpe(documents(), 280)


def test_a_token_of_the_byte_tokenizer_is_a_byte():
    ids = byte_tokenizer()(ODD)["input_ids"]
    assert ids == list(ODD.encode())
    assert len(byte_tokenizer()) == BYTES + 1


def test_a_bpe_begins_with_bytes_and_is_shorter():
    bpe = train_bpe(documents(), 280)
    assert len(bpe) == 280
    assert spelling(bpe)[:BYTES] == [bytes([n]) for n in range(BYTES)]
    sentence = documents()[3].content.decode()
    assert len(bpe(sentence)["input_ids"]) < 0.6 * len(sentence.encode())


def test_any_text_is_decoded_exactly(tokenizer):
    ids = tokenizer(ODD)["input_ids"]
    assert tokenizer.decode(ids) == ODD
    assert b"".join(spelling(tokenizer)[token] for token in ids) == ODD.encode()
    assert tokenizer.eos_token_id == tokenizer.bos_token_id == tokenizer.pad_token_id == BYTES


def test_the_name_of_the_end_token_is_plain_text(tokenizer):
    made = [*documents(), Document("odd", f"{ODD} {END} after".encode())]
    found = list(encode(tokenizer, made))
    spelled = spelling(tokenizer)
    for tokens, document in zip(found, made, strict=True):
        assert tokens.dtype == np.int64
        assert b"".join(spelled[token] for token in tokens) == document.content
        assert BYTES not in tokens
    assert found[0].tolist() == tokenizer(made[0].content.decode())["input_ids"]


def test_only_bytes_accept_documents_that_are_not_utf8():
    wrong = [Document("data.bin", b"good\xff")]
    assert next(iter(encode(byte_tokenizer(), wrong))).tolist() == [*b"good\xff"]
    with pytest.raises(ValueError, match=r"data.bin is not UTF-8 \(byte 4\), .* bytes takes any"):
        list(encode(train_bpe(documents(), 280), wrong))
    with pytest.raises(ValueError, match=r"data.bin is not UTF-8"):
        train_bpe(wrong, 280)


def test_training_a_bpe_is_deterministic():
    first, second = (train_bpe(text().train, 280).backend_tokenizer.to_str() for _ in range(2))
    assert first == second


@pytest.mark.parametrize("kind", [AutoTokenizer, PreTrainedTokenizerFast])
def test_transformers_loads_a_saved_tokenizer(tokenizer, kind, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    again = kind.from_pretrained(tmp_path, local_files_only=True)
    assert again(ODD)["input_ids"] == tokenizer(ODD)["input_ids"]
    assert again.decode(again(ODD)["input_ids"]) == ODD
    assert again.eos_token_id == BYTES
    assert spelling(again) == spelling(tokenizer)
    assert "auto_map" not in json.loads((tmp_path / "tokenizer_config.json").read_text())


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (b"\xe2\x82a\xffb\xf0", ["�a", "�", "b", "�"]),  # invalid bytes delay nothing
        ([BYTES, 5000, 97], ["a"]),  # the end, and a token beyond the vocabulary
    ],
)
def test_invalid_bytes_are_replaced(tokens, expected):
    assert list(decode(byte_tokenizer(), tokens)) == expected


def test_characters_are_decoded_when_complete(tokenizer):
    parts = list(decode(tokenizer, tokenizer(ODD)["input_ids"]))
    assert "".join(parts) == ODD
    assert len(parts) > 5


def test_another_kind_of_tokenizer_is_decoded_by_its_library():
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "cat": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
    assert spelling(tokenizer) is None
    assert "".join(decode(tokenizer, [1, 2, 1])) == "the cat the"
