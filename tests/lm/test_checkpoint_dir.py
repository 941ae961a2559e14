"""A model's folder: transformers reads it, and what is no such folder is told."""

import json
import shutil

import pytest
import torch

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from text_helpers import TINY, documents, text
from transformers import AutoModelForCausalLM, AutoTokenizer

from eattn.lm import LMConfig, checkpoint_dir, train_lm, load, save, train_bpe
from eattn.lm.checkpoint_dir import begin, check_free, goes_on, tokenizer_of

CONFIG = LMConfig(**TINY)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    out = tmp_path_factory.mktemp("saved") / "model"
    learnt = train_lm(text(), CONFIG)
    save(learnt, out, text(), CONFIG)
    return out, learnt


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved[0], tmp_path / "copy")


def test_transformers_reads_it(saved):
    out, learnt = saved
    model = AutoModelForCausalLM.from_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    tokens = tokenizer("the cat", return_tensors="pt")["input_ids"]
    assert torch.equal(model(tokens).logits, learnt.model(tokens).logits)
    assert model.generate(tokens, max_new_tokens=5, do_sample=False).shape[1] <= 12
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 256


def test_it_says_how_it_came_about_and_nothing_is_left_over(saved):
    out, learnt = saved
    told = json.loads((out / "training.json").read_text())
    assert told["settings"]["mixer"] == "ea-6"
    assert told["settings"]["text"] == text().fingerprint
    assert told["held_out"] == [document.name for document in text().validation]
    assert told["points"][-1]["bits_per_byte"] == learnt.points[-1].bits_per_byte
    assert not (out / "checkpoint").exists()


def test_ours_reads_it_too_and_it_may_be_overwritten_with_force_only(copy):
    model, tokenizer = load(copy)
    assert len(tokenizer) == model.config.vocab_size == 257
    with pytest.raises(ValueError, match="copy holds a model already: --force overwrites it"):
        check_free(copy, force=False)
    check_free(copy, force=True)
    learnt = train_lm(text(), LMConfig(**TINY | dict(hidden=8)))
    save(learnt, copy, text(), CONFIG)
    assert load(copy)[0].config.hidden_size == 8


def test_a_checkpoint_goes_when_the_model_is_on_the_disk(saved, tmp_path, monkeypatch):
    synced = []

    def sync(path):
        assert goes_on(tmp_path, text(), CONFIG, force=False)
        synced.append(path.name)

    begin(tmp_path, text(), CONFIG)
    monkeypatch.setattr(checkpoint_dir, "sync", sync)
    save(saved[1], tmp_path, text(), CONFIG)
    assert sorted(synced[:-1]) == sorted(path.name for path in tmp_path.iterdir())
    assert synced[-1] == tmp_path.name


@pytest.mark.parametrize("work", ["save", "begin"])
def test_what_a_kill_leaves_of_a_checkpoint_is_no_run_to_go_on_with(
    saved, tmp_path, monkeypatch, work
):
    remove = shutil.rmtree

    def killed(path, **options):
        if path.name == "checkpoint":
            raise KeyboardInterrupt
        remove(path, **options)

    begin(tmp_path, text(), CONFIG)
    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        if work == "save":
            save(saved[1], tmp_path, text(), CONFIG)
        else:
            begin(tmp_path, text(), CONFIG)
    assert (tmp_path / "checkpoint").exists()
    assert not goes_on(tmp_path, text(), CONFIG, force=False)


def test_a_folder_of_other_things_is_never_written_to(tmp_path):
    (tmp_path / "thesis.tex").touch()
    for force in (False, True):
        with pytest.raises(ValueError, match=r"holds thesis.tex, which is no part of a model"):
            check_free(tmp_path, force=force)
    with pytest.raises(ValueError, match=r"--out must be a folder, got the file .*thesis.tex"):
        check_free(tmp_path / "thesis.tex", force=True)
    check_free(tmp_path / "new", force=False)


# ---- a run that was begun ------------------------------------------------------------------------


def test_a_run_goes_on_only_as_the_one_it_was(tmp_path):
    assert not goes_on(tmp_path, text(), CONFIG, force=False)
    begin(tmp_path, text(), CONFIG)
    assert goes_on(tmp_path, text(), CONFIG, force=False)
    assert goes_on(tmp_path, text(), CONFIG, force=True)
    other = LMConfig(**TINY | dict(mixer="sa"))
    told = r"settings.json is of another run: mixer was ea-6 and is sa; .*--force starts anew"
    with pytest.raises(ValueError, match=told):
        goes_on(tmp_path, text(), other, force=False)
    assert not goes_on(tmp_path, text(), other, force=True)


def test_another_text_is_another_run(tmp_path):
    from eattn.data.text import split

    begin(tmp_path, text(), CONFIG)
    with pytest.raises(ValueError, match=r"text was \w+ and is \w+"):
        goes_on(tmp_path, split(documents(25)), CONFIG, force=False)


def test_its_tokenizer_is_made_once(tmp_path):
    settings = LMConfig(**TINY | dict(tokenizer="bpe", vocab=280))
    begin(tmp_path, text(), settings)
    found = tokenizer_of(tmp_path / "checkpoint").backend_tokenizer.to_str()
    assert found == train_bpe(text().train, 280).backend_tokenizer.to_str()


# ---- what is no model ----------------------------------------------------------------------------


def test_what_is_no_model_is_named(tmp_path, copy):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    begin(tmp_path / "begun", text(), CONFIG)
    for name, reason in (
        ("gone", "must be the folder of a saved model, there is none"),
        ("file", "must be the folder of a saved model, got a file"),
        ("empty", "holds no saved model: it has no config.json"),
        ("begun", "holds no saved model: it is still being trained"),
    ):
        with pytest.raises(ValueError, match=f"{name} {reason}"):
            load(tmp_path / name)
    (copy / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="holds a model of type 'bert', not a language model"):
        load(copy)
    (copy / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json is damaged, no JSON"):
        load(copy)


def test_a_tokenizer_of_another_model_is_named(copy):
    train_bpe(documents(), 280).save_pretrained(copy)
    with pytest.raises(ValueError, match=r"tokenizer has 280 tokens and .* vocab_size = 257"):
        load(copy)
    (copy / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"holds no tokenizer: it has no tokenizer.json"):
        load(copy)
