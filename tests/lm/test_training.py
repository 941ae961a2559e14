"""Training on text: losses of packed sequences, and bits per byte."""

import math
from itertools import pairwise

import pytest
import torch

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from text_helpers import TINY, documents, text
from torch.testing import assert_close

from eattn.data.text import Document, Text
from eattn.hf import EAForCausalLM
from eattn.lm import (
    LMConfig,
    PackedDataset,
    bits_per_byte,
    byte_tokenizer,
    train_bpe,
    train_lm,
    training,
)
from eattn.lm.tokenizer import BYTES, encode
from eattn.lm.training import byte_counts, loss
from eattn.train import CheckpointError

MIXERS = ("ea-2", "ea-6", "ea", "ea-q17", "sa", "la")


def model(**changes) -> EAForCausalLM:
    torch.manual_seed(0)
    config = LMConfig(**TINY | changes)
    return EAForCausalLM(config.model(BYTES + 1)).double().eval()


def packed(length: int = 32, tokenizer=None) -> PackedDataset:
    tokenizer = tokenizer or byte_tokenizer()
    return PackedDataset(encode(tokenizer, documents()), length=length, end=BYTES)


@pytest.mark.parametrize("mixer", [*MIXERS, "ea-6+decay", "ea-6+gate", "sa+rope", "la+gate"])
def test_packed_sequences_have_the_loss_of_each_alone(mixer):
    net = model(mixer=mixer)
    tokens, labels, cu_seqlens = batch = packed(100).collate([3, 0, 2])
    assert tokens.shape == (1, 300)
    assert len(cu_seqlens) > 5  # documents end within rows
    alone = []
    for a, b in pairwise(cu_seqlens.tolist()):
        logits = net(tokens[:, a:b]).logits[0]
        alone.append(torch.nn.functional.cross_entropy(logits, labels[a:b], reduction="sum"))
    found, weight = loss(net, batch)
    assert weight == 300
    assert_close(found, (torch.stack(alone).sum() / 300).float(), rtol=1e-5, atol=1e-6)


def test_aft_learns_positions_for_its_length():
    config = LMConfig(**TINY | dict(mixer="aft"))
    assert config.model(257).max_position_embeddings == config.length
    assert LMConfig(**TINY).model(257).max_position_embeddings is None


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_a_uniform_model_needs_the_bits_of_its_vocabulary(kind):
    tokenizer = byte_tokenizer() if kind == "bytes" else train_bpe(documents(), 280)
    net = EAForCausalLM(LMConfig(**TINY).model(len(tokenizer)))
    torch.nn.init.zeros_(net.lm_head.weight)
    rows = packed(tokenizer=tokenizer)
    found = bits_per_byte(net, rows, byte_counts(tokenizer), batch_tokens=64, max_tokens=10**9)
    size = sum(len(document.content) for document in documents())
    assert found == pytest.approx(math.log2(len(tokenizer)) * rows.tokens / size, rel=1e-5)


def test_bits_per_byte_reads_rows_from_all_of_the_text():
    net, rows, sizes = model(), packed(), byte_counts(byte_tokenizer())
    whole, single = (bits_per_byte(net, rows, sizes, size, 10**9) for size in (10**6, 1))
    assert single == pytest.approx(whole)
    chosen = rows.collate([0, round((len(rows) - 1) / 2), len(rows) - 1])
    nats, count = loss(net, chosen)
    expected = nats.item() / math.log(2) * count / sizes[chosen[1]].sum().item()
    found = bits_per_byte(net, rows, sizes, batch_tokens=64, max_tokens=100)
    assert found == pytest.approx(expected)


def test_all_mixers_have_the_same_number_of_parameters():
    sizes = {
        sum(p.numel() for p in EAForCausalLM(LMConfig(mixer=mixer).model(257)).parameters())
        for mixer in MIXERS
    }
    assert len(sizes) == 1


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_training_lowers_bits_per_byte_and_keeps_the_best(kind):
    trained = train_lm(text(), LMConfig(**TINY | dict(steps=60, tokenizer=kind, vocab=280)))
    first, *_, last = trained.points
    assert len(trained.points) == 3
    assert last.bits_per_byte < first.bits_per_byte < 8.5
    assert trained.best.bits_per_byte == min(point.bits_per_byte for point in trained.points)
    assert [point.tokens for point in trained.points] == [20 * 128, 40 * 128, 60 * 128]
    assert 0 < first.seconds < last.seconds < trained.history.seconds
    rows = PackedDataset(encode(trained.tokenizer, text().validation), length=32, end=BYTES)
    again = bits_per_byte(trained.model, rows, byte_counts(trained.tokenizer), 128, 2**17)
    assert again == pytest.approx(trained.best.bits_per_byte, rel=1e-5)


def test_bfloat16_learns_almost_the_same():
    exact, mixed = (
        train_lm(text(), LMConfig(**TINY | dict(precision=precision))).points
        for precision in ("float32", "bfloat16")
    )
    assert mixed[-1].bits_per_byte != exact[-1].bits_per_byte
    assert mixed[-1].bits_per_byte == pytest.approx(exact[-1].bits_per_byte, rel=0.02)


def test_validation_text_does_not_affect_the_training():
    config = LMConfig(**TINY | dict(tokenizer="bpe", vocab=280))
    other = Text(text().train, (Document("other", b"zzzz qqqq " * 30),))
    losses = [train_lm(each, config).history.rows[-1].loss for each in (text(), other)]
    assert losses[0] == losses[1]


def test_an_interrupted_run_is_resumed_bit_for_bit(tmp_path, monkeypatch):
    config, calls = LMConfig(**TINY), iter(range(100))
    options = dict(checkpoint=tmp_path, checkpoint_every=5)

    def fail(*given):
        if next(calls) == 8:
            raise InterruptedError
        return loss(*given)

    with monkeypatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr(training, "loss", fail)
        train_lm(text(), config, **options)
    with pytest.raises(CheckpointError, match=r"lr was 0.01 and is 0.5; .*another folder"):
        train_lm(text(), LMConfig(**TINY | dict(lr=0.5)), **options)
    whole, resumed = train_lm(text(), config), train_lm(text(), config, **options)
    assert [p.bits_per_byte for p in resumed.points] == [p.bits_per_byte for p in whole.points]
    assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)


def test_a_text_shorter_than_a_batch_is_one_batch():
    trained = train_lm(text(), LMConfig(**TINY | dict(batch_tokens=10**6, steps=2)))
    assert len(trained.points) == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (dict(tokenizer="words"), "tokenizer must be 'bytes' or 'bpe', got 'words'"),
        (dict(batch_tokens=16), "batch_tokens must be at least length = 32, got 16"),
        (dict(epochs=1), "give either steps or epochs, got 12 and 1"),
        (dict(steps=None), "give either steps or epochs, got None and None"),
        (dict(mixer="sax"), "unknown mixer 'sax'"),
        (dict(lr=0.0), "lr must be above 0"),
        (dict(length=0), "length must be at least 1, got 0"),
        (dict(hidden=0), "hidden_size must be at least 1, got 0"),
        (dict(ffn=0), "ffn must be at least 1, got 0"),
    ],
    ids=str,
)
def test_an_invalid_config_raises(change, reason):
    with pytest.raises(ValueError, match=reason):
        LMConfig(**TINY | change)
