"""Learning from text: all of it, none of it twice, judged in bits a byte, resumed to the bit."""

import math
from itertools import pairwise

import pytest
import torch

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from text_helpers import TINY, documents, text
from torch.testing import assert_close

from eattn.lm.dataset import PackedDataset
from eattn.data.text import Document, Text
from eattn.hf import EAForCausalLM
from eattn.lm import Corpus, LMConfig, bits_per_byte, byte_tokenizer, train_lm, train_bpe, training
from eattn.lm.tokenizer import BYTES, encode
from eattn.lm.training import byte_counts, loss

MIXERS = ("ea-2", "ea-6", "ea", "ea-q17", "sa", "la")


def model(**changes) -> EAForCausalLM:
    torch.manual_seed(0)
    settings = LMConfig(**TINY | changes)
    return EAForCausalLM(settings.model(BYTES + 1)).double().eval()


def packed(length: int = 32, tokenizer=None) -> PackedDataset:
    tokenizer = tokenizer or byte_tokenizer()
    return PackedDataset(encode(tokenizer, documents()), length=length, end=BYTES)


# ---- what is learnt and what is judged -----------------------------------------------------------


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_batch_gives_each_sequence_the_loss_it_has_alone(mixer):
    net, corpus = model(mixer=mixer), packed(100)
    tokens, labels, cu_seqlens = batch = corpus.collate([3, 0, 2])
    assert tokens.shape == (1, 300)
    assert len(cu_seqlens) > 5  # documents end within rows
    alone = []
    for a, b in pairwise(cu_seqlens.tolist()):
        logits = net(tokens[:, a:b]).logits[0]
        alone.append(torch.nn.functional.cross_entropy(logits, labels[a:b], reduction="sum"))
    found, weight = loss(net, batch)
    assert weight == 300
    assert_close(found, (torch.stack(alone).sum() / 300).float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_a_model_that_knows_nothing_needs_the_bits_of_its_vocabulary(kind):
    tokenizer = byte_tokenizer() if kind == "bytes" else train_bpe(documents(), 280)
    net = EAForCausalLM(LMConfig(**TINY).model(len(tokenizer)))
    torch.nn.init.zeros_(net.lm_head.weight)
    rows = packed(tokenizer=tokenizer)
    found = bits_per_byte(net, rows, byte_counts(tokenizer), batch_tokens=64, max_tokens=10**9)
    size = sum(len(document.content) for document in documents())
    assert found == pytest.approx(math.log2(len(tokenizer)) * rows.tokens / size, rel=1e-5)


def test_how_many_rows_are_judged_at_once_changes_nothing():
    net, rows, sizes = model(), packed(), byte_counts(byte_tokenizer())
    whole = bits_per_byte(net, rows, sizes, batch_tokens=10**6, max_tokens=10**9)
    assert bits_per_byte(net, rows, sizes, batch_tokens=1, max_tokens=10**9) == pytest.approx(whole)


def test_of_a_long_text_rows_from_all_over_it_are_judged():
    net, rows, sizes = model(), packed(), byte_counts(byte_tokenizer())
    chosen = rows.collate([0, round((len(rows) - 1) / 2), len(rows) - 1])
    nats, count = loss(net, chosen)
    expected = nats.item() / math.log(2) * count / sizes[chosen[1]].sum().item()
    assert bits_per_byte(net, rows, sizes, batch_tokens=64, max_tokens=100) == pytest.approx(expected)


def test_all_mixers_have_the_same_number_of_parameters():
    sizes = {
        sum(p.numel() for p in EAForCausalLM(LMConfig(mixer=mixer).model(257)).parameters())
        for mixer in ("ea-2", "ea-6", "ea", "ea-q17", "sa", "la")
    }
    assert len(sizes) == 1


# ---- a run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_learning_lowers_bits_per_byte_and_keeps_the_best(kind):
    settings = LMConfig(**TINY | dict(steps=60, tokenizer=kind, vocab=280))
    learnt = train_lm(text(), settings)
    first, *_, last = learnt.points
    assert len(learnt.points) == 3
    assert last.bits_per_byte < first.bits_per_byte < 8.5
    assert learnt.best.bits_per_byte == min(point.bits_per_byte for point in learnt.points)
    assert [point.tokens for point in learnt.points] == [20 * 128, 40 * 128, 60 * 128]
    assert 0 < first.seconds < last.seconds < learnt.history.seconds
    rows = PackedDataset(encode(learnt.tokenizer, text().validation), length=32, end=BYTES)
    sizes = byte_counts(learnt.tokenizer)
    again = bits_per_byte(learnt.model, rows, sizes, batch_tokens=128, max_tokens=2**17)
    assert again == pytest.approx(learnt.best.bits_per_byte, rel=1e-5)


def test_held_out_text_is_not_learnt_from():
    """Not even by the tokenizer: what is held out may be anything."""
    settings = LMConfig(**TINY | dict(tokenizer="bpe", vocab=280))
    known = text()
    other = Text(known.train, (Document("other", b"zzzz qqqq " * 30),))
    weights = [train_lm(each, settings).history.rows[-1].loss for each in (known, other)]
    assert weights[0] == weights[1]


def test_a_run_that_was_cut_off_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    settings = LMConfig(**TINY)
    places = dict(checkpoint=tmp_path, checkpoint_every=5)
    whole = train_lm(text(), settings)
    calls = iter(range(100))

    def cut(*args):
        if next(calls) == 8:
            raise InterruptedError
        return loss(*args)

    monkeypatch.setattr(training, "loss", cut)
    with pytest.raises(InterruptedError):
        train_lm(text(), settings, **places)
    monkeypatch.setattr(training, "loss", loss)
    resumed = train_lm(text(), settings, **places)
    assert [p.bits_per_byte for p in resumed.points] == [p.bits_per_byte for p in whole.points]
    expected = whole.model.state_dict()
    assert all(torch.equal(x, expected[name]) for name, x in resumed.model.state_dict().items())


def test_a_text_shorter_than_a_batch_is_one_batch():
    learnt = train_lm(text(), LMConfig(**TINY | dict(batch_tokens=10**6, steps=2)))
    assert len(learnt.points) == 2


# ---- what cannot be ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (dict(tokenizer="words"), "tokenizer must be 'bytes' or 'bpe', got 'words'"),
        (dict(batch_tokens=16), "tokens of a batch must be at least those of a row, 32, got 16"),
        (dict(epochs=1), "give either steps or epochs, got 12 and 1"),
        (dict(steps=None), "give either steps or epochs, got None and None"),
        (dict(mixer="sax"), "unknown mixer 'sax'"),
        (dict(lr=0.0), "lr must be above 0"),
        (dict(length=0), "length must be at least 1, got 0"),
        (dict(hidden=0), "hidden_size must be at least 1, got 0"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_named(change, reason):
    with pytest.raises(ValueError, match=reason):
        LMConfig(**TINY | change)
