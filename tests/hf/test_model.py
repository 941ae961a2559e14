"""The models, following the ModelTesterMixin of transformers.

Attention outputs, attention implementations, 4-D masks, chunked feed-forward, fp32 modules, several
devices and quantisation do not apply. Export is tested in tests/export.
"""

import copy
import itertools
from inspect import signature

import pytest
import torch

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from hf_helpers import MIXERS, SHAPES, VOCAB, config, ids, make, padded
from torch.testing import assert_close

from eattn.hf import (
    EACache,
    EAForCausalLM,
    EAForMaskedLM,
    EAForSequenceClassification,
    EAModel,
)

KINDS = (EAModel, EAForCausalLM, EAForMaskedLM, EAForSequenceClassification)
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
mixers = pytest.mark.parametrize("mixer", MIXERS)
shapes = pytest.mark.parametrize("shape", SHAPES)
sides = pytest.mark.parametrize("side", ["left", "right"])


def output(model, *args, **kwargs):
    """Return the logits, or the hidden states of a model without a head."""
    return model(*args, **kwargs)[0]


@pytest.mark.parametrize(
    ("kind", "mixer", "shape"),
    [
        *((EAForCausalLM, mixer, "default") for mixer in MIXERS),
        *itertools.product(KINDS, ["ea-6"], SHAPES),
    ],
)
def test_padding_does_not_change_outputs(kind, mixer, shape):
    model = make(kind, mixer=mixer, **SHAPES[shape])
    rows = [ids(1, n, seed=n)[0] for n in (9, 4, 1)]
    for side in ("left", "right"):
        tokens, mask = padded(rows, side)
        together = output(model, tokens, attention_mask=mask)
        for i, row in enumerate(rows):
            got = together[i] if kind is EAForSequenceClassification else together[i, mask[i] == 1]
            assert_close(got, output(model, row[None])[0])


@mixers
@shapes
def test_cache_does_not_change_logits(mixer, shape):
    """Read the text token by token, in chunks, and in a mix of both."""
    model, tokens = make(mixer=mixer, **SHAPES[shape]), ids(2, 12)
    want = model(tokens, use_cache=False)
    assert want.past_key_values is None
    for sizes in ([1] * 12, [5, 7], [3, 1, 1, 4, 3]):
        cache, got = None, []
        for part in tokens.split(sizes, 1):
            out = model(part, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            got.append(out.logits)
        assert cache.get_seq_length() == 12
        assert_close(torch.cat(got, 1), want.logits)


@shapes
@sides
@pytest.mark.parametrize("whole", [True, False], ids=["mask of all tokens", "mask of new tokens"])
def test_padded_prefill_continues_as_without_padding(shape, side, whole):
    model = make(**SHAPES[shape])
    rows = [ids(1, n, seed=n)[0] for n in (6, 2)]
    tokens, mask = padded(rows, side)
    cache = model(tokens, attention_mask=mask).past_key_values
    more = ids(2, 3, seed=9)
    ones = torch.ones_like(more)
    mask = torch.cat([mask, ones], 1) if whole else ones
    got = model(more, attention_mask=mask, past_key_values=cache).logits
    for i, row in enumerate(rows):
        assert_close(got[i], model(torch.cat([row, more[i]])[None]).logits[0, len(row) :])


@pytest.mark.parametrize("kind", KINDS[:3])  # a classifier takes one text per row
@shapes
def test_packed_sequences_match_separate_sequences(kind, shape):
    model, lengths = make(kind, **SHAPES[shape]), [4, 1, 6]
    tokens = ids(1, 11)
    alone = torch.cat([output(model, part) for part in tokens.split(lengths, 1)], 1)
    offsets = torch.tensor([0, 4, 5, 11], dtype=torch.int32)
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    assert_close(output(model, tokens, cu_seqlens=offsets), alone)
    assert_close(output(model, tokens, position_ids=positions), alone)
    two = output(model, tokens.repeat(2, 1), position_ids=positions)
    assert_close(two, alone.repeat(2, 1, 1))


def test_offsets_of_flattening_collator_are_used():
    from transformers import DataCollatorWithFlattening

    model = make()
    rows = [ids(1, n, seed=n)[0].tolist() for n in (5, 3)]
    batch = DataCollatorWithFlattening(return_flash_attn_kwargs=True)(
        [{"input_ids": row} for row in rows]
    )
    tokens = [torch.tensor([row]) for row in rows]
    losses = [model(row, labels=row).loss * (row.shape[1] - 1) for row in tokens]
    want = sum(losses) / sum(row.shape[1] - 1 for row in tokens)
    assert_close(model(**batch).loss, want)
    packed = torch.cat(tokens, 1)
    offsets = torch.tensor([0, 5, 8], dtype=torch.int32)
    assert_close(model(packed, labels=packed, cu_seqlens=offsets).loss, want)


@kinds
def test_embeddings_and_tuples_give_same_output(kind):
    model, tokens = make(kind), ids(2, 7)
    model.set_input_embeddings(copy.deepcopy(model.get_input_embeddings()))
    embedded = model.get_input_embeddings()(tokens)
    assert torch.equal(output(model, inputs_embeds=embedded), output(model, tokens))
    named = model(tokens, output_hidden_states=True)
    plain = model(tokens, output_hidden_states=True, return_dict=False)
    assert isinstance(plain, tuple)
    assert torch.equal(plain[0], named[0]) and torch.equal(plain[-1][-1], named.hidden_states[-1])


@kinds
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_hidden_states_are_inputs_of_blocks(kind, norm):
    model = make(kind, norm=norm)
    states = model(ids(2, 7), output_hidden_states=True).hidden_states
    assert [tuple(x.shape) for x in states] == [(2, 7, 12)] * 3
    assert torch.equal(states[-1], model.base_model(ids(2, 7)).last_hidden_state)
    model.config.output_hidden_states = True
    states = model(ids(2, 7)).hidden_states
    states[1].retain_grad()
    states[-1].sum().backward()
    assert states[1].grad is not None
    assert model(ids(2, 7), output_hidden_states=False).hidden_states is None


@kinds
@sides
def test_masked_tokens_are_never_read(kind, side):
    model = make(kind)
    tokens, mask = padded([ids(1, n, seed=n)[0] for n in (7, 3)], side)
    clean = model.get_input_embeddings()(tokens).detach()
    answers = []
    for fill in (0.0, torch.nan, torch.inf):
        x = clean.masked_fill(mask[..., None] == 0, fill).requires_grad_()
        y = output(model, inputs_embeds=x, attention_mask=mask)
        assert y.isfinite().all()
        kept = y if kind is EAForSequenceClassification else y[mask == 1]
        inputs = [x, *model.base_model.layers.parameters()]
        answers.append([kept, *torch.autograd.grad(kept.sum(), inputs)])
    for other in answers[1:]:
        assert all(torch.equal(a, b) for a, b in zip(answers[0], other, strict=True))


def loss_of(model, tokens):
    labels = tokens if not isinstance(model, EAForSequenceClassification) else tokens[:, 0] % 2
    return model(tokens, labels=labels).loss


@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: kind.__name__)
@shapes
def test_every_weight_gets_a_gradient(kind, shape):
    model, tokens = make(kind, **SHAPES[shape]).train(), ids(3, 8)
    loss_of(model, tokens).backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())
    assert model(tokens).get("past_key_values") is None  # no cache in training


def test_loss_is_cross_entropy_of_next_token():
    model, tokens = make(), ids(2, 6)
    labels = tokens.clone()
    labels[0, 3] = -100
    logits = model(tokens).logits[:, :-1].flatten(0, 1).detach()
    want = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten())
    assert float(model(tokens, labels=labels).loss.detach()) == pytest.approx(float(want), abs=1e-6)


@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_no_gradient(kind, reentrant):
    model, tokens = make(kind).train(), ids(2, 8)
    loss_of(model, tokens).backward()
    want = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert model.is_gradient_checkpointing
    calls = []
    layer = model.model.layers[0]
    layer.register_forward_pre_hook(lambda *_: calls.append(1))
    loss_of(model, tokens).backward()
    assert len(calls) == 2  # forward and recomputation in the backward
    for name, p in model.named_parameters():
        assert_close(p.grad, want[name])
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing


@pytest.mark.parametrize(
    ("problem", "labels"),
    [
        ("single_label_classification", torch.tensor([2, 0])),
        ("multi_label_classification", torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]])),
        ("regression", torch.tensor([[0.1, 0.2, 0.3], [1.0, 2.0, 3.0]]).double()),
    ],
)
def test_classifier_supports_all_problem_types(problem, labels):
    model = make(EAForSequenceClassification, num_labels=3, problem_type=problem)
    out = model(ids(2, 5), labels=labels)
    assert out.logits.shape == (2, 3) and out.loss.isfinite()


def test_classifier_pools_last_token_if_causal_else_mean():
    tokens = ids(1, 6)
    for causal in (True, False):
        model = make(EAForSequenceClassification, causal=causal)
        x = model.model(tokens).last_hidden_state
        pooled = x[:, -1] if causal else x.mean(1)
        assert_close(model(tokens).logits, model.score(pooled))


def test_compiled_model_has_same_gradients():
    model, tokens = make().train(), ids(2, 8)
    loss_of(model, tokens).backward()
    want = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    compiled(tokens, labels=tokens).loss.backward()
    assert_close([p.grad for p in model.parameters()], want)


@pytest.mark.parametrize(
    ("kind", "mixer"),
    [*((EAForCausalLM, mixer) for mixer in MIXERS), *((kind, MIXERS[2]) for kind in KINDS)],
)
def test_saved_model_loads_bit_identical(kind, mixer, tmp_path):
    model, tokens = make(kind, mixer=mixer, max_position_embeddings=30), ids(2, 7)
    with torch.no_grad():
        model.train()(tokens)  # a learned center is a buffer
        model.eval().save_pretrained(tmp_path)
    assert [path.suffix for path in tmp_path.glob("model*")] == [".safetensors"]
    again, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert again.dtype == torch.float64 and not again.training
    state = model.state_dict()
    assert state.keys() == again.state_dict().keys()
    assert all(torch.equal(x, state[name]) for name, x in again.state_dict().items())
    assert any(model.named_buffers()) == ("center" in mixer and bool(model.config.causal))
    assert_close(output(again, tokens), output(model, tokens), rtol=1e-12, atol=1e-12)


def test_saved_model_loads_with_another_head(tmp_path):
    """Weights and buffers that are missing in the file are initialised as in a new model."""
    model = make(mixer="ea-6+center")
    model.save_pretrained(tmp_path)
    tokens = ids(2, 7)
    other = EAForSequenceClassification.from_pretrained(tmp_path, num_labels=4)
    assert other.config.causal and other.score.weight.std() > 0
    assert_close(other.model(tokens)[0], model.model(tokens)[0])
    masked = EAForMaskedLM.from_pretrained(tmp_path, causal=False)
    assert not masked.config.causal and masked(tokens).logits.isfinite().all()
    wide = EAModel.from_pretrained(
        tmp_path, ignore_mismatched_sizes=True, intermediate_size=20, short_conv=2
    )
    new = EAModel(wide.config)
    for block, fresh in zip(wide.layers, new.layers, strict=True):
        assert block.ffn[0].weight.shape == (20, 12)
        ratio = block.ffn[0].weight.std() / fresh.ffn[0].weight.std()
        assert 0.7 < ratio < 1.4
        assert 0.3 < block.mixer.conv.weight.std() < 0.5


def test_blocks_are_initialised_as_in_eattn_nn():
    """Queries and keys start in the accurate range of the series, not with initializer_range."""
    torch.manual_seed(0)
    model = EAModel(config(hidden_size=96))
    block = model.layers[0]
    q, k, v = block.mixer.mixer.in_proj.weight.detach().chunk(3)
    assert float(q.std() / v.std()) == pytest.approx(0.5, abs=0.05)
    assert float(k.std() / v.std()) == pytest.approx(0.5, abs=0.05)
    assert float(model.embed_tokens.weight.detach().std()) == pytest.approx(0.02, rel=0.1)


def test_output_embeddings_are_tied_to_input_embeddings():
    for kind, head in ((EAForCausalLM, "lm_head"), (EAForMaskedLM, "decoder")):
        tied, untied = make(kind), make(kind, tie_word_embeddings=False)
        assert getattr(tied, head).weight is tied.model.embed_tokens.weight
        assert getattr(untied, head).weight is not untied.model.embed_tokens.weight
        assert tied.get_output_embeddings() is getattr(tied, head)
        names = [name for name, _ in tied.named_parameters()]
        assert f"{head}.weight" not in names


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_vocabulary_can_be_resized(kind, tied, tmp_path):
    model, tokens = make(kind, tie_word_embeddings=tied), ids(2, 7) % 20
    want = output(model, tokens)
    for size in (VOCAB + 7, 20):
        model.resize_token_embeddings(size, mean_resizing=False)
        assert model.config.vocab_size == size
        got = output(model, tokens)
        if kind in (EAForCausalLM, EAForMaskedLM):
            assert got.shape[-1] == size
            assert_close(got[..., :20], want[..., :20])
        else:
            assert_close(got, want)
    model.save_pretrained(tmp_path)
    assert_close(output(kind.from_pretrained(tmp_path), tokens), output(model, tokens))


@kinds
def test_model_follows_conventions_of_transformers(kind):
    model = make(kind)
    assert model.main_input_name == "input_ids"
    assert list(signature(model.forward).parameters)[:2] == ["input_ids", "attention_mask"]
    unregistered = [
        f"{name}.{field}"
        for name, module in model.named_modules()
        for field, value in vars(module).items()
        if isinstance(value, torch.Tensor)  # excludes parameters and buffers
    ]
    assert not unregistered


def test_weights_load_from_state_dict_or_pickle(tmp_path):
    model, tokens = make(), ids(2, 7)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)
    fresh = EAForCausalLM(model.config).double().eval()
    fresh.load_state_dict(weights)
    assert torch.equal(output(fresh, tokens), output(model, tokens))
    given = EAForCausalLM.from_pretrained(None, config=model.config, state_dict=weights)
    assert torch.equal(output(given, tokens), output(model, tokens))
    transposed = make()
    first = transposed.model.layers[0].ffn[0]
    first.weight = torch.nn.Parameter(first.weight.detach().T.contiguous().T)
    transposed.save_pretrained(tmp_path)
    again = EAForCausalLM.from_pretrained(tmp_path)
    assert again.model.layers[0].ffn[0].weight.is_contiguous()
    assert_close(output(again, tokens), output(model, tokens))


def test_loss_is_normalised_by_num_items_in_batch():
    """The Trainer passes it when it accumulates gradients."""
    model, tokens = make(), ids(2, 6)
    mean = model(tokens, labels=tokens).loss
    assert_close(model(tokens, labels=tokens, num_items_in_batch=20).loss, mean * 10 / 20)


def test_half_precision_keeps_sums_in_float32():
    model = make().bfloat16()
    out = model(ids(2, 5), use_cache=True)
    assert out.logits.dtype == torch.bfloat16
    assert out.past_key_values.layers[0].state.after.s.dtype == torch.float32


@pytest.mark.parametrize("mixer", ["ea-6", "ea-q17", "la", "linear-rnn", "gru"])
def test_cache_keeps_its_size(mixer):
    model, cache = make(mixer=mixer), EACache(2)
    sizes = []
    for part in (ids(2, 1), ids(2, 30), ids(2, 1)):
        model(part, past_key_values=cache)
        sizes.append(cache.nbytes)
    assert len(set(sizes)) == 1 and sizes[0] > 0


@mixers
@torch.no_grad()
def test_cache_rows_are_selected_and_repeated(mixer):
    model, tokens = make(mixer=mixer, max_position_embeddings=30), ids(3, 6)
    _, mask = padded([torch.ones(n) for n in (6, 4, 1)], "left")
    cache = model(tokens, attention_mask=mask).past_key_values
    branches = copy.deepcopy(cache)
    rows, more = torch.tensor([2, 2, 0]), ids(3, 2, seed=5)
    cache.reorder_cache(rows)
    ones = torch.ones(3, 2, dtype=torch.long)
    whole = torch.cat([tokens[rows], more], 1), torch.cat([mask[rows], ones], 1)
    want = model(whole[0], attention_mask=whole[1]).logits[:, 6:]
    assert_close(model(more, past_key_values=cache).logits, want)
    branches.batch_repeat_interleave(2)
    assert branches.batch_size == 6
    branches.batch_select_indices(torch.tensor([False, True, False, False, True, True]))
    assert_close(model(more[[2, 0, 1]], past_key_values=branches).logits[1:], want[:2])
    cache.reset()
    assert (cache.get_seq_length(), cache.nbytes, cache.batch_size) == (0, 0, -1)
    assert_close(model(tokens, past_key_values=cache).logits, model(tokens).logits)


def test_decoding_step_compiles_once():
    """Decoding changes no shape and no constant, so all steps share their code."""
    graphs = []

    def count(graph, _):
        graphs.append(graph)
        return graph.forward

    model, tokens = make(), ids(2, 12)
    want = model(tokens).logits
    torch.compiler.reset()
    step = torch.compile(model, backend=count)
    got = []
    with torch.no_grad():
        cache = model(tokens[:, :2]).past_key_values
        for t in range(2, 12):
            got.append(step(tokens[:, t : t + 1], past_key_values=cache, use_cache=True).logits)
            if t == 5:
                settled = len(graphs)
    assert_close(torch.cat(got, 1), want[:, 2:])
    assert len(graphs) == settled


def test_trainer_reduces_loss(tmp_path):
    from transformers import Trainer, TrainingArguments

    torch.manual_seed(0)
    model = EAForCausalLM(config())
    rows = [{"input_ids": row, "labels": row} for row in ids(1, 6).repeat(8, 1)]
    options = dict(use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no")
    arguments = TrainingArguments(tmp_path, learning_rate=0.02, num_train_epochs=30, **options)
    before = float(model(ids(1, 6), labels=ids(1, 6)).loss.detach())
    Trainer(model, arguments, train_dataset=rows).train()
    assert float(model.eval()(ids(1, 6), labels=ids(1, 6)).loss.detach()) < before / 2
