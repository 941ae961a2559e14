"""Tokens: bytes and BPE come back as they went in, whole or piece by piece, and from a folder."""

import json

import numpy as np
import pytest

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from text_helpers import documents, text
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from eattn.data.text import Document
from eattn.lm.tokenizer import BYTES, END, byte_tokenizer, encode, spelling, train_bpe, writer

ODD = "naïve 日本 🙂\r\n\ttab\x00 end"


@pytest.fixture(scope="module", params=["bytes", "bpe"])
def tokenizer(request):
    return byte_tokenizer() if request.param == "bytes" else train_bpe(documents(), 280)


def test_bytes_are_their_own_tokens():
    ids = byte_tokenizer()(ODD)["input_ids"]
    assert ids == list(ODD.encode())
    assert len(byte_tokenizer()) == BYTES + 1


def test_a_bpe_has_bytes_and_the_end_first_and_is_shorter_than_bytes():
    bpe = train_bpe(documents(), 280)
    assert len(bpe) == 280
    assert spelling(bpe)[:BYTES] == [bytes([n]) for n in range(BYTES)]
    sentence = documents()[3].content.decode()
    assert len(bpe(sentence)["input_ids"]) < 0.6 * len(sentence.encode())


def test_any_text_comes_back_as_it_was(tokenizer):
    ids = tokenizer(ODD)["input_ids"]
    assert tokenizer.decode(ids) == ODD
    assert b"".join(spelling(tokenizer)[token] for token in ids) == ODD.encode()
    assert tokenizer.eos_token_id == tokenizer.bos_token_id == tokenizer.pad_token_id == BYTES


def test_documents_are_encoded_alike_and_the_name_of_the_end_is_no_end_in_them(tokenizer):
    made = [*documents(), Document("odd", f"{ODD} {END} after".encode())]
    found = list(encode(tokenizer, made))
    spelled = spelling(tokenizer)
    for tokens, document in zip(found, made, strict=True):
        assert tokens.dtype == np.int64
        assert b"".join(spelled[token] for token in tokens) == document.content
        assert BYTES not in tokens
    assert found[0].tolist() == tokenizer(made[0].content.decode())["input_ids"]


def test_bytes_need_not_be_a_text_but_a_bpe_says_which_document_is_none():
    wrong = [Document("data.bin", b"good\xff")]
    assert next(iter(encode(byte_tokenizer(), wrong))).tolist() == [*b"good\xff"]
    with pytest.raises(ValueError, match=r"data.bin is not UTF-8 \(byte 4\), .* bytes takes any"):
        list(encode(train_bpe(documents(), 280), wrong))
    with pytest.raises(ValueError, match=r"data.bin is not UTF-8"):
        train_bpe(wrong, 280)


def test_a_vocabulary_too_small_for_bytes_is_named():
    with pytest.raises(ValueError, match=r"vocab must be above 257, .* got 257"):
        train_bpe(documents(), 257)


def test_two_trainings_give_the_same_tokenizer():
    first, second = (train_bpe(text().learnt, 280).backend_tokenizer.to_str() for _ in range(2))
    assert first == second


@pytest.mark.parametrize("kind", [AutoTokenizer, PreTrainedTokenizerFast])
def test_a_saved_one_is_read_by_transformers_without_us(tokenizer, kind, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    again = kind.from_pretrained(tmp_path, local_files_only=True)
    assert again(ODD)["input_ids"] == tokenizer(ODD)["input_ids"]
    assert again.decode(again(ODD)["input_ids"]) == ODD
    assert again.eos_token_id == BYTES
    assert spelling(again) == spelling(tokenizer)
    assert "auto_map" not in json.loads((tmp_path / "tokenizer_config.json").read_text())


# ---- as it comes ---------------------------------------------------------------------------------


def test_characters_are_written_when_they_are_whole(tokenizer):
    made = writer(tokenizer)
    parts = [made.write(token) for token in tokenizer(ODD)["input_ids"]]
    assert "".join(parts) == ODD
    assert "�" not in "".join(parts)
    assert made.rest() == ""


def test_what_is_no_character_is_written_as_such_and_holds_nothing_up():
    made = writer(byte_tokenizer())
    assert [made.write(byte) for byte in b"\xe2\x82a\xffb"] == ["", "", "�a", "�", "b"]
    assert made.write(0xF0) == ""
    assert made.rest() == "�"


def test_the_end_and_tokens_beyond_the_vocabulary_write_nothing():
    made = writer(byte_tokenizer())
    assert made.write(BYTES) == made.write(5000) == ""


def test_another_kind_of_tokenizer_is_written_as_its_library_does():
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "cat": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
    assert spelling(tokenizer) is None
    made = writer(tokenizer)
    assert "".join([*map(made.write, [1, 2, 1]), made.rest()]) == "the cat the"
