"""The directory of a model: transformers reads it, and invalid ones raise."""

import json
import shutil

import pytest
import torch

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from text_helpers import TINY, documents, text
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from eattn.data.text import split
from eattn.lm import LMConfig, load, save, train_bpe, train_lm
from eattn.lm.checkpoint_dir import check_free, start

CONFIG = LMConfig(**TINY)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    out = tmp_path_factory.mktemp("saved") / "model"
    start(out, text(), CONFIG, force=False)
    trained = train_lm(text(), CONFIG)
    save(trained, out, text(), CONFIG)
    return out, trained


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved[0], tmp_path / "copy")


def test_transformers_reads_it(saved):
    out, trained = saved
    model = AutoModelForCausalLM.from_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    tokens = tokenizer("the cat", return_tensors="pt")["input_ids"]
    assert torch.equal(model(tokens).logits, trained.model(tokens).logits)
    assert model.generate(tokens, max_new_tokens=5, do_sample=False).shape[1] <= 12
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 256


def test_the_history_is_saved_and_the_checkpoint_removed(saved):
    out, trained = saved
    about = json.loads((out / "training.json").read_text())
    assert about["config"]["mixer"] == "ea-6+decay"
    assert about["config"]["text"] == text().fingerprint
    assert about["validation"] == [document.name for document in text().validation]
    assert about["points"][-1]["bits_per_byte"] == trained.points[-1].bits_per_byte
    assert not (out / "checkpoint").exists()


def test_a_failed_save_keeps_the_checkpoint(saved, tmp_path, monkeypatch):
    out = tmp_path / "model"
    start(out, text(), CONFIG, force=False)
    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save(saved[1], out, text(), CONFIG)
    with pytest.raises(ZeroDivisionError):  # another run would replace the checkpoint
        start(out, text(), LMConfig(**TINY | dict(mixer="sa")), force=True)
    start(out, text(), CONFIG, force=False)
    assert sorted(path.name for path in (out / "checkpoint").iterdir()) == ["run.json", "tokenizer"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_with_other_files_is_never_overwritten(tmp_path):
    (tmp_path / "thesis.tex").touch()
    for force in (False, True):
        with pytest.raises(ValueError, match=r"holds thesis.tex, which is no part of a model"):
            check_free(tmp_path, force=force)
    with pytest.raises(ValueError, match=r"--out must be a folder, got the file .*thesis.tex"):
        check_free(tmp_path / "thesis.tex", force=True)
    check_free(tmp_path / "new", force=False)


def test_only_the_same_run_is_resumed(tmp_path):
    start(tmp_path, text(), CONFIG, force=False)
    mark = tmp_path / "checkpoint" / "last.pt"
    mark.touch()
    for force in (False, True):
        start(tmp_path, text(), CONFIG, force=force)
        assert mark.exists()
    other = LMConfig(**TINY | dict(mixer="sa"))
    message = r"another configuration: mixer was ea-6\+decay and is sa; .*--force starts again"
    with pytest.raises(ValueError, match=message):
        start(tmp_path, text(), other, force=False)
    with pytest.raises(ValueError, match=r"text was \w+ and is \w+"):
        start(tmp_path, split(documents(25)), CONFIG, force=False)
    assert mark.exists()
    start(tmp_path, text(), other, force=True)
    assert not mark.exists()


def test_the_tokenizer_of_a_run_is_trained_once(tmp_path):
    start(tmp_path, text(), LMConfig(**TINY | dict(tokenizer="bpe", vocab=280)), force=False)
    found = PreTrainedTokenizerFast.from_pretrained(tmp_path / "checkpoint" / "tokenizer")
    expected = train_bpe(text().train, 280).backend_tokenizer.to_str()
    assert found.backend_tokenizer.to_str() == expected


def test_a_folder_without_a_model_raises(tmp_path, copy):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    start(tmp_path / "started", text(), CONFIG, force=False)
    for name, reason in (
        ("gone", "must be the folder of a saved model, it does not exist"),
        ("file", "must be the folder of a saved model, got a file"),
        ("empty", "holds no saved model: it has no config.json"),
        ("started", "holds no saved model: it is still being trained"),
    ):
        with pytest.raises(ValueError, match=f"{name} {reason}"):
            load(tmp_path / name)
    for content, reason in (
        ('{"model_type": "bert"}', "holds a model of type 'bert', not a language model"),
        ("{", r"config.json is damaged, no JSON"),
    ):
        (copy / "config.json").write_text(content)
        with pytest.raises(ValueError, match=reason):
            load(copy)


def test_a_tokenizer_of_another_model_raises(copy):
    train_bpe(documents(), 280).save_pretrained(copy)
    with pytest.raises(ValueError, match=r"tokenizer has 280 tokens and .* vocab_size = 257"):
        load(copy)
    (copy / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"holds no tokenizer: it has no tokenizer.json"):
        load(copy)
