"""Generation: the tokens that transformers would choose, in constant memory."""

from itertools import islice
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from hf_helpers import VOCAB, ids, make

from eattn.lm import Sampling, byte_tokenizer, generate, stream
from eattn.lm.generate import Generation

GREEDY = Sampling(temperature=0)
PROMPT = ids(1, 9)[0].tolist()


def written(model, count: int = 40, **options) -> list[int]:
    return list(Generation(model, PROMPT, tokens=count, **options))


@pytest.mark.parametrize(
    "mixer", ["ea-6+decay", "ea-q17+gate", "ea", "sa", "sa+rope", "la", "la+gate", "deltanet"]
)
def test_greedy_tokens_match_transformers(mixer):
    model = make(mixer=mixer)
    expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=40, do_sample=False)
    assert written(model, sampling=GREEDY) == expected[0, 9:].tolist()


def test_chunks_of_the_prompt_do_not_change_the_tokens(monkeypatch):
    whole = written(make(), sampling=GREEDY)
    monkeypatch.setattr(generate, "CHUNK", 4)
    assert written(make(), sampling=GREEDY) == whole


def test_a_seed_determines_the_tokens():
    model = make()
    assert written(model, seed=3) == written(model, seed=3)
    assert len({tuple(written(model, seed=seed)) for seed in range(4)}) == 4
    assert written(model) != written(model)  # without a seed


def test_sampling_from_one_token_is_greedy():
    model = make()
    expected = written(model, sampling=GREEDY)
    for sampling in (Sampling(top_k=1), Sampling(top_p=1e-6), Sampling(temperature=1e-4)):
        assert written(model, seed=0, sampling=sampling) == expected


def test_generation_stops_at_the_end_token_unless_endless():
    model = make()
    endless = written(model, 200, seed=0)
    end = endless[5]
    model.config.eos_token_id = [end]
    assert written(model, 200, seed=0) == endless[: endless.index(end)]
    model.config.eos_token_id = end
    more = written(model, 200, seed=0, endless=True)
    assert len(more) == 200
    assert end not in more


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_memory_does_not_grow():
    made = Generation(make(), PROMPT, tokens=10**6, seed=0)
    held = made.cache.nbytes
    for _ in islice(made, 500):  # allocators and caches settle
        pass
    before = resident()
    for _ in islice(made, 2500):
        pass
    assert made.cache.nbytes == held
    assert made.cache.get_seq_length() == len(PROMPT) + 3000
    assert resident() - before < 2**19  # the tokens alone, passed on as tensors, would be more


def test_softmax_attention_keeps_everything():
    made = Generation(make(mixer="sa"), PROMPT, tokens=100, seed=0)
    held = made.cache.nbytes
    for _ in islice(made, 50):
        pass
    assert made.cache.nbytes > 4 * held


def test_stream_yields_whole_characters():
    model = make(vocab_size=257)
    tokenizer = byte_tokenizer()
    parts = list(stream(model, tokenizer, "añ", tokens=60, seed=0))
    tokens = list(Generation(model, [*"añ".encode()], tokens=60, seed=0))
    whole = bytes(token for token in tokens if token < 256)
    assert "".join(parts) == whole.decode(errors="replace")
    assert len(parts) > 10


def test_invalid_input_raises():
    with pytest.raises(ValueError, match="at least one token, got none"):
        Generation(make(), [], tokens=5)
    with pytest.raises(ValueError, match="tokens must be at least 1, got 0"):
        Generation(make(), PROMPT, tokens=0)
    with pytest.raises(ValueError, match=f"from 0 to {VOCAB - 1}, .* got 99: use the tokenizer"):
        Generation(make(), [99], tokens=5)
    with pytest.raises(ValueError, match=r"tokens must be at most 4 after .* of 9, .* got 6"):
        Generation(make(max_position_embeddings=12), PROMPT, tokens=6)
    with pytest.raises(ValueError, match=r"the prompt has 9 tokens, and .* positions for 8"):
        Generation(make(max_position_embeddings=8), PROMPT, tokens=1)
    assert len(written(make(max_position_embeddings=14), 6, seed=0)) == 6
    for change, reason in (
        (dict(temperature=-1.0), "temperature must be at least 0"),
        (dict(top_k=0), "top_k must be at least 1, got 0"),
        (dict(top_p=0.0), "top_p must be above 0 and at most 1, got 0.0"),
    ):
        with pytest.raises(ValueError, match=reason):
            Sampling(**change)


def test_nan_weights_are_named():
    model = make()
    torch.nn.init.constant_(model.model.norm.weight, torch.nan)
    with pytest.raises(ValueError, match=r"logits are NaN; the weight model.norm.weight holds NaN"):
        Generation(model, PROMPT, tokens=3)
