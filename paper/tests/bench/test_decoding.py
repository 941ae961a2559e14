"""Decoding from a position that was filled directly: all is as after so many real tokens."""

import pytest
import torch

from eattn.nn import EncoderState
from paper.bench import decoding
from paper.bench.bert import make_model
from paper.bench.candidates import inputs
from paper.bench.decoding import Decoder, Stream, alternate, generate, prefill, read, room_for

SIZE = {"dim": 48, "depth": 2}
MIXER = pytest.mark.parametrize("name", ["ea-2", "ea-6", "sa", "sa-math"])


def decoder(name: str, *, batch: int = 2, room: int = 40) -> Decoder:
    return Decoder(name, batch=batch, room=room, **SIZE)


def tensors(state: EncoderState) -> list[torch.Tensor]:
    """Of all blocks: what a token reads."""
    layers = state.layers
    if hasattr(layers[0], "k"):
        return [x for layer in layers for x in (layer.k, layer.v)]
    return [x for layer in layers for x in layer]


@MIXER
def test_a_filled_state_is_like_that_after_a_prompt(name):
    model = make_model(name, causal=True, max_len=40, **SIZE).eval()
    real = read(model, inputs((2, 30, 48), 1)[0], 8)
    filled = decoder(name).at(30)
    assert filled.nbytes == real.nbytes
    for ours, theirs in zip(tensors(filled), tensors(real), strict=True):
        assert ours.shape == theirs.shape
        assert ours.stride()[-2:] == theirs.stride()[-2:]
        assert 0.2 < ours.abs().mean() / theirs.abs().mean() < 5  # of the same scale
        assert ours.data_ptr() != tensors(real)[0].data_ptr()


@MIXER
def test_no_two_blocks_share_their_memory(name):
    starts = [x.data_ptr() for x in tensors(decoder(name).at(30))]
    assert len(set(starts)) == len(starts)


@MIXER
def test_tokens_go_on_from_the_position_and_change(name):
    stream = Stream(decoder(name), 30)
    before, size = stream.x_t, stream.state_bytes
    times = stream.seconds(3)
    assert len(times) == 3
    assert min(times) > 0
    assert stream.x_t.isfinite().all()
    assert not torch.equal(stream.x_t, before)
    grown = 2 * 3 * 48 * 4 * 2 * 2 if name.startswith("sa") else 0  # keys and values of 3 tokens
    assert stream.state.nbytes == size + grown


def test_a_cache_is_never_copied_while_decoding():
    stream = Stream(decoder("sa"), 30)
    before = [x.data_ptr() for x in tensors(stream.state)]
    stream.seconds(10)
    assert [x.data_ptr() for x in tensors(stream.state)] == before
    with pytest.raises(ValueError, match="room for max_len = 40 tokens, got token 41"):
        stream.seconds(1)


def test_positions_share_the_memory_of_a_cache_and_not_of_a_state():
    sa, ea = decoder("sa"), decoder("ea-6")
    assert tensors(sa.at(10))[0].data_ptr() == tensors(sa.at(30))[0].data_ptr()
    assert tensors(ea.at(10))[0].data_ptr() != tensors(ea.at(30))[0].data_ptr()


class Fake:
    """A stream that says when it was asked."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def seconds(self, count: int) -> list[float]:
        self.log.append(self.name)
        return [100.0] + [1.0] * (count - 1)


def test_streams_take_turns_and_the_first_token_of_a_turn_does_not_count():
    log: list[str] = []
    found = alternate({name: Fake(name, log) for name in "abc"}, tokens=7, burst=3)
    rounds = [log[:3], log[3:6], log[6:]]
    assert [sorted(names) for names in rounds] == [["a", "b", "c"]] * 3
    assert len(set(map(tuple, rounds))) > 1  # nobody always comes after the same other
    assert found == {name: [1.0] * 9 for name in "abc"}
    assert alternate({}, tokens=7, burst=3) == {}


@pytest.mark.parametrize(("tokens", "burst"), [(64, 8), (7, 3), (1, 1)])
def test_there_is_room_for_all_the_tokens_of_the_turns(tokens, burst):
    room = room_for([4, 10], tokens, burst)
    stream = Stream(decoder("sa", room=room), 10)
    alternate({"sa": stream}, tokens=tokens, burst=burst)
    assert stream.state.layers[0].length == room


@MIXER
def test_a_prompt_read_in_chunks_leaves_the_state_of_one_read_at_once(name):
    options = {"batch": 2, "length": 20, **SIZE}
    chunks, whole = (prefill(name, chunk=chunk, **options)() for chunk in (8, 20))
    for ours, theirs in zip(tensors(chunks), tensors(whole), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@MIXER
def test_generating_decodes_as_many_tokens_as_asked_for(name):
    assert len(generate(name, batch=1, position=20, tokens=4, **SIZE)()) == 4


def test_a_sample_stands_for_every_position(monkeypatch):
    """The scale of the sums grows with the tokens, their memory does not."""
    early, late = (decoder("ea-6").at(position) for position in (decoding.SAMPLE, 160))
    assert early.nbytes == late.nbytes
    torch.testing.assert_close(late.layers[0].z, 10 * early.layers[0].z)
