"""The models, following the ModelTesterMixin of transformers, for every head.

Its tests of loading are in test_loading.py, those of old names of weights in test_saved_models.py,
those of training and pipelines in test_trainer.py and test_pipelines.py, those of export in
test_exporters.py and tests/export, and those of wrong inputs in test_bad_input.py. These tests do
not apply:

- attention outputs, eager, SDPA, flash and flex attention, sliding windows: a mixer is not one of
  transformers' attention functions, and EA has no matrix of attention weights;
- chunked feed-forward, resized position embeddings, modules kept in float32, weights left out of a
  file, experts, tensor-parallel plans, `capture_outputs`, nested configs, features of texts,
  images, audio and video: the models have none of these;
- several devices, default devices, offloading to CPU, DeepSpeed: they need a GPU;
- the size of the tested models and the base classes of the tests: they test the tests.
"""

import copy
import itertools
from inspect import isroutine, signature

import pytest
import torch

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from hf_helpers import (
    HEADS,
    KINDS,
    MIXERS,
    PER_TEXT,
    SHAPES,
    VOCAB,
    config,
    ids,
    labels_for,
    make,
    padded,
)
from safetensors.torch import load_file, save_file
from torch._subclasses import FakeTensorMode
from torch.testing import assert_close

from eattn.hf import (
    EACache,
    EAConfig,
    EAForCausalLM,
    EAForMaskedLM,
    EAForSequenceClassification,
    EAForTokenClassification,
    EAModel,
)
from eattn.hf.cache import EACacheLayer

PACKABLE = (EAModel, EAForCausalLM, EAForMaskedLM, EAForTokenClassification)
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
heads = pytest.mark.parametrize("kind", HEADS, ids=lambda kind: kind.__name__)
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
            got = together[i] if kind in PER_TEXT else together[i, mask[i] == 1]
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


@pytest.mark.parametrize("kind", PACKABLE)  # the others take one text per row
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
    if kind in HEADS:
        labels = labels_for(kind, tokens)
        named, plain = model(tokens, **labels), model(tokens, **labels, return_dict=False)
        assert torch.equal(plain[0], named.loss) and torch.equal(plain[1], named[1])


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
        kept = y if kind in PER_TEXT else y[mask == 1]
        inputs = [x, *model.base_model.layers.parameters()]
        answers.append([kept, *torch.autograd.grad(kept.sum(), inputs)])
    for other in answers[1:]:
        assert all(torch.equal(a, b) for a, b in zip(answers[0], other, strict=True))


VALUELESS = [
    *((kind, "ea-6", shape) for kind, shape in itertools.product(KINDS, SHAPES)),
    *((EAForCausalLM, mixer, "bert") for mixer in (*MIXERS[1:], "aft")),
]


@pytest.mark.parametrize(("kind", "mixer", "shape"), VALUELESS)
@pytest.mark.parametrize("mode", [FakeTensorMode(), torch.device("meta")], ids=["fake", "meta"])
def test_model_gives_shapes_without_values(kind, mixer, shape, mode):
    with mode:
        model = kind(config(mixer=mixer, **SHAPES[shape])).eval()
        tokens, mask = torch.ones(2, 7, dtype=torch.long), torch.ones(2, 7)
        want = output(model, tokens).shape
        out = model(tokens, attention_mask=mask)
        assert out[0].shape == want
        if model.config.causal:
            assert model(tokens[:, :1], past_key_values=out.past_key_values)[0].shape[:2] == (2, 1)
        if kind in PACKABLE and mixer.startswith("ea-"):
            assert output(model, tokens, position_ids=torch.arange(7)[None] % 4).shape == want
            packed = output(model, tokens[:1], cu_seqlens=torch.tensor([0, 3, 7]))
            assert packed.shape[1:] == want[1:]


@kinds
def test_models_form_an_ensemble_under_vmap(kind):
    """Inputs are also mapped: they have no values to check inside `vmap`."""
    models = [make(kind) for _ in range(2)]
    with torch.no_grad():
        models[1].base_model.embed_tokens.weight.mul_(2)
    weights, buffers = torch.func.stack_module_state(models)
    tokens, mask = padded([ids(1, n, seed=n)[0] for n in (7, 3)], "left")

    def call(weights, buffers, tokens, mask):
        inputs = dict(input_ids=tokens, attention_mask=mask)
        return torch.func.functional_call(models[0], (weights, buffers), (), inputs)[0]

    tokens, mask = torch.stack([tokens, tokens.flip(0)]), torch.stack([mask, mask.flip(0)])
    with torch.no_grad():
        got = torch.func.vmap(call)(weights, buffers, tokens, mask)
    for i, model in enumerate(models):
        assert_close(got[i], output(model, tokens[i], attention_mask=mask[i]))


@kinds
def test_outputs_are_deterministic_in_evaluation_mode(kind):
    model, tokens = make(kind, hidden_dropout_prob=0.5), ids(2, 7)
    first = output(model, tokens)
    assert torch.equal(output(model, tokens), first)
    assert not torch.equal(output(model.train(), tokens), first)


@heads
def test_frozen_model_passes_gradients_to_inputs(kind):
    """Adapters set this flag and rely on `enable_input_require_grads`."""
    model, tokens = make(kind).train().requires_grad_(False), ids(2, 7)
    model._hf_peft_config_loaded = True
    model.gradient_checkpointing_enable()
    last = model.base_model.layers[-1].ffn.down.requires_grad_(True)
    loss_of(model, tokens).backward()
    assert last.weight.grad.any()
    model.disable_input_require_grads()
    assert not model.get_input_embeddings()(tokens).requires_grad


@kinds
def test_unknown_base_weights_are_reported(kind, tmp_path):
    """Weights that a file lacks are reported by name, for a head and for its base model."""
    model = make(kind)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    gone = next(name for name in weights if name.endswith("layers.1.norm_ffn.bias"))
    del weights[gone]
    save_file(
        {**weights, "extra": torch.zeros(1)}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    _, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert set(report["missing_keys"]) == {gone} and set(report["unexpected_keys"]) == {"extra"}
    base, report = EAModel.from_pretrained(tmp_path, output_loading_info=True)
    assert set(report["missing_keys"]) == {gone.removeprefix("model.")}
    assert_close(base.layers[0].ffn.up.weight, model.base_model.layers[0].ffn.up.weight)


def loss_of(model, tokens):
    return model(tokens, **labels_for(type(model), tokens)).loss


@heads
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


@heads
@pytest.mark.parametrize(("reentrant", "every"), [(False, 1), (True, 1), (False, 2)])
def test_gradient_checkpointing_changes_no_gradient(kind, reentrant, every):
    model, tokens = make(kind).train(), ids(2, 8)
    loss_of(model, tokens).backward()
    want = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant}, every_n_layers=every)
    assert model.is_gradient_checkpointing
    calls = []
    for i, layer in enumerate(model.model.layers):
        layer.register_forward_pre_hook(lambda *_, i=i: calls.append(i))
    loss_of(model, tokens).backward()
    assert calls == ([0, 1, 1, 0] if every == 1 else [0, 1, 0])  # forward, then recomputation
    for name, p in model.named_parameters():
        assert_close(p.grad, want[name])
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing


@kinds
def test_config_can_enable_gradient_checkpointing(kind):
    assert not kind(config()).is_gradient_checkpointing
    assert kind(config(gradient_checkpointing=True)).is_gradient_checkpointing


@kinds
def test_special_tokens_are_optional(kind):
    fields = config(bos_token_id=1, eos_token_id=2).to_diff_dict()
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "tie_word_embeddings"):
        fields.pop(name, None)
    assert output(kind(EAConfig(**fields)), ids(2, 5)).isfinite().all()


@pytest.mark.parametrize(
    ("problem", "labels"),
    [
        ("single_label_classification", torch.tensor([2, 0])),
        ("multi_label_classification", torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]])),
        ("regression", torch.tensor([[0.1, 0.2, 0.3], [1.0, 2.0, 3.0]]).double()),
        ("regression", torch.tensor([0.1, 1.0]).double()),
    ],
)
def test_classifier_supports_all_problem_types(problem, labels):
    count = 1 if labels.dim() == 1 and labels.is_floating_point() else 3
    model = make(EAForSequenceClassification, num_labels=count, problem_type=problem)
    out = model(ids(2, 5), labels=labels)
    assert out.logits.shape == (2, count)
    out.loss.backward()
    assert model.score.weight.grad.any()


def test_classifier_pools_last_token_if_causal_else_mean():
    tokens = ids(1, 6)
    for causal in (True, False):
        model = make(EAForSequenceClassification, causal=causal)
        x = model.model(tokens).last_hidden_state
        pooled = x[:, -1] if causal else x.mean(1)
        assert_close(model(tokens).logits, model.score(pooled))


def test_compiled_model_has_same_gradients():
    model = make(max_position_embeddings=30).train()
    tokens, mask = padded([ids(1, n, seed=n)[0] for n in (8, 5)], "right")
    inputs = dict(input_ids=tokens, attention_mask=mask, labels=tokens, use_cache=False)
    model(**inputs).loss.backward()
    want = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    compiled(**inputs).loss.backward()
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
    given = dict(pretrained_model_name_or_path=tmp_path, output_loading_info=True)
    again, report = kind.from_pretrained(**given)
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
        assert block.ffn.up.weight.shape == (20, 12)
        ratio = block.ffn.up.weight.std() / fresh.ffn.up.weight.std()
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
@kinds
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
@pytest.mark.parametrize("size", [VOCAB, 4])  # more and fewer tokens than hidden channels
def test_new_tokens_start_near_mean_embedding(kind, size):
    model = make(kind, vocab_size=size, tie_word_embeddings=False)
    resized = model.resize_token_embeddings(50, pad_to_multiple_of=16)
    assert resized is model.get_input_embeddings() and model.config.vocab_size == 64
    head = model.get_output_embeddings()
    made = [resized.weight, *([] if head is None else head.parameters())]
    kept = [tensor.detach().clone() for tensor in made]
    for tensor in kept:
        assert_close(tensor[size:].mean(0), tensor[:size].mean(0), rtol=1e-3, atol=1e-3)
    model.post_init()
    assert all(torch.equal(tensor, old) for tensor, old in zip(made, kept, strict=True))
    assert output(model, torch.full((1, 3), 63)).isfinite().all()


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


@pytest.mark.parametrize("kind", [*KINDS, EAConfig, EACache, EACacheLayer])
def test_overrides_keep_parameter_names_of_transformers(kind):
    """Every method can be called with the keywords that transformers documents."""
    compared = 0
    for owner in kind.__mro__:
        for name, method in vars(owner).items():
            if not owner.__module__.startswith("eattn.hf") or name in ("__init__", "forward"):
                continue
            parents = (vars(parent).get(name) for parent in owner.__mro__[1:])
            parent = next((found for found in parents if found is not None), None)
            if not isroutine(method) or parent is None:
                continue
            own, theirs = (
                [p.name for p in signature(getattr(f, "__func__", f)).parameters.values()]
                for f in (method, parent)
            )
            named = [name for name in own if name not in ("args", "model_args", "kwargs")]
            assert named == theirs[: len(named)], f"{owner.__name__}.{name}"
            compared += 1
    assert compared


@pytest.mark.parametrize("mixer", [*MIXERS, "gru"])
def test_documented_lora_targets_are_linear_layers(mixer):
    targets = ("in_proj", "out_proj", "up", "down")
    found = {
        name.rsplit(".", 1)[-1]: type(module)
        for name, module in make(mixer=mixer).named_modules()
        if name.endswith(tuple(f".{target}" for target in targets))
    }
    expected = targets[mixer == "gru" :]  # the GRU of PyTorch has its own input projection
    assert found == dict.fromkeys(expected, torch.nn.Linear)


@kinds
def test_weights_load_from_state_dict_or_pickle(kind, tmp_path):
    model, tokens = make(kind), ids(2, 7)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)
    fresh = kind(model.config).double().eval()
    fresh.load_state_dict(weights)
    assert torch.equal(output(fresh, tokens), output(model, tokens))
    given = kind.from_pretrained(None, config=model.config, state_dict=weights)
    assert torch.equal(output(given, tokens), output(model, tokens))
    transposed = make(kind)
    first = transposed.base_model.layers[0].ffn.up
    first.weight = torch.nn.Parameter(first.weight.detach().T.contiguous().T)
    transposed.save_pretrained(tmp_path)
    again = kind.from_pretrained(tmp_path)
    assert again.base_model.layers[0].ffn.up.weight.is_contiguous()
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


@pytest.mark.parametrize(
    "mixer", ["ea-6", "ea-q17", "la", "la+gate", "deltanet", "linear-rnn", "gru"]
)
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
    assert cache.is_initialized and cache.has_previous_state()
    cache.reset()
    assert (cache.get_seq_length(), cache.nbytes, cache.batch_size) == (0, 0, -1)
    assert not cache.is_initialized and not cache.has_previous_state()
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
