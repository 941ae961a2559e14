"""`eattn lm`: train a model on files, resume it, and generate text."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from safetensors.torch import load_file, save_file
from text_helpers import documents

from eattn import cli
from eattn.cli.lm import app
from eattn.lm import checkpoint_dir, load, training
from eattn.lm.generate import Generation

SIZE = ["--hidden", "16", "--layers", "1", "--length", "32", "--batch-tokens", "128"]
SMALL = [*SIZE, "--steps", "12", "--lr", "0.01"]


def call(*args: object, stdin: str | None = None) -> str:
    """Return what a command prints to stdout; raise what it raises."""
    result = CliRunner().invoke(
        app, [str(arg) for arg in args], input=stdin, env={"COLUMNS": "200"}
    )
    if result.exception is not None:
        raise result.exception
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files in `text`, and `model`, trained on them one by one."""
    folder = tmp_path_factory.mktemp("lm")
    (folder / "text").mkdir()
    for name, content in documents():
        (folder / "text" / name).write_bytes(content)
    files = sorted((folder / "text").iterdir())
    said = call("train", "--text", *files, "--out", folder / "model", *SMALL)
    assert said.startswith(f"{folder / 'model'}: ea-6+decay, ")
    assert " bits per byte on 1 validation document\n" in said
    return folder


def points(model) -> list[float]:
    about = json.loads((model / "training.json").read_text())
    return [point["bits_per_byte"] for point in about["points"]]


@pytest.mark.parametrize("mixer", ["sa", "ea", "ea-q17+gate"])
def test_options_reach_the_model(folder, tmp_path, mixer):
    options = ["--mixer", mixer, "--short-conv", 0, "--positions", "--tokenizer", "bpe"]
    more = ["--vocab", 280, "--epochs", 1, "--seed", 3, *SIZE]
    call("train", "--text", folder / "text", "--out", tmp_path / "model", *options, *more)
    config = load(tmp_path / "model")[0].config
    assert (config.mixer, config.short_conv, config.max_position_embeddings) == (mixer, None, 32)
    assert config.vocab_size == 280
    assert config.hidden_size == 16


def test_an_interrupted_run_is_resumed_bit_for_bit(folder, tmp_path, monkeypatch):
    """The folder gives the same text as its files one by one."""
    args = ["train", "--text", folder / "text", "--out", tmp_path / "model", *SMALL]
    monkeypatch.setattr(checkpoint_dir, "CHECKPOINT_SECONDS", 1e-9)
    calls, loss = iter(range(100)), training.loss

    def interrupted(*given):
        if next(calls) == 7:
            raise KeyboardInterrupt
        return loss(*given)

    monkeypatch.setattr(training, "loss", interrupted)
    with pytest.raises(BaseException):  # noqa: B017 - typer makes an exit of it
        call(*args)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["checkpoint"]
    assert (tmp_path / "model" / "checkpoint" / "last.pt").exists()
    monkeypatch.setattr(training, "loss", loss)
    with pytest.raises(ValueError, match=r"lr was 0.01 and is 0.02; .*--force starts again"):
        call(*args, "--lr", 0.02)
    call(*args)
    assert points(tmp_path / "model") == points(folder / "model")
    weights = (path / "model" / "model.safetensors" for path in (tmp_path, folder))
    first, second = map(load_file, weights)
    assert all(torch.equal(first[name], second[name]) for name in second)


def test_a_model_is_overwritten_with_force_only(folder, tmp_path):
    model = shutil.copytree(folder / "model", tmp_path / "model")
    args = ["train", "--text", folder / "text", "--out", model, *SMALL, "--seed", 1]
    with pytest.raises(ValueError, match="holds a model already: --force overwrites it"):
        call(*args)
    pytest.importorskip("tensorboard")
    call(*args, "--force", "--tensorboard", tmp_path / "board")
    assert points(model) != points(folder / "model")
    assert list((tmp_path / "board").glob("events.*"))


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--text", "gone.txt"], "gone.txt does not exist"),
        (["--mixer", "sax"], "unknown mixer 'sax'"),
        (["--epochs", "1"], "give either steps or epochs"),
        (["--tokenizer", "bpe", "--vocab", "257"], "vocab must be above 257"),
        (["--precision", "fp8"], "precision must be one of 'auto', 'float32', 'bfloat16'"),
    ],
    ids=" ".join,
)
def test_invalid_options_raise(folder, tmp_path, args, reason):
    with pytest.raises(ValueError, match=reason):
        call("train", folder / "text", "--out", tmp_path / "model", *SMALL, *args)
    assert not (tmp_path / "model" / "config.json").exists()


def test_a_seed_determines_the_text(folder):
    args = ["generate", folder / "model", "--prompt", "the c", "--tokens", 50, "--endless"]
    first = call(*args, "--seed", 1)
    assert first == call(*args, "--seed", 1)
    assert first != call(*args, "--seed", 2)
    model, _ = load(folder / "model")
    tokens = list(Generation(model, [*b"the c"], tokens=50, seed=1, endless=True))
    assert first.rstrip("\n") == bytes(tokens).decode(errors="replace").rstrip("\n") != ""
    assert first.endswith("\n")
    assert call(*args, "--temperature", 0) == call(*args, "--temperature", 0)


def test_a_prompt_can_come_from_stdin_and_be_echoed(folder):
    args = ["generate", folder / "model", "--tokens", 20, "--seed", 1, "--temperature", 0.5]
    args += ["--top-k", 30, "--top-p", 0.9, "--endless"]
    expected = call(*args, "--prompt", "a mat\n")
    assert call(*args, "--prompt", "-", stdin="a mat\n") == expected
    assert call(*args, "--prompt", "a mat\n", "--echo") == "a mat\n" + expected
    for prompt in ("", "-"):
        with pytest.raises(ValueError, match="--prompt must not be empty"):
            call(*args, "--prompt", prompt, stdin="")


def reconfigured(**changes: object):
    def change(model):
        path = model / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def reweighted(edit):
    def change(model):
        path = model / "model.safetensors"
        weights = load_file(path)
        edit(weights)
        save_file(weights, path, metadata={"format": "pt"})

    return change


def written(name: str, content: bytes):
    return lambda model: (model / name).write_bytes(content)


BIAS = "model.layers.0.ffn.up.bias"
BROKEN = {
    "no model": (lambda model: shutil.rmtree(model), "must be the folder of a saved model"),
    "no config": (lambda model: (model / "config.json").unlink(), "it has no config.json"),
    "no weights": (lambda model: (model / "model.safetensors").unlink(), "no file named model"),
    "torn weights": (written("model.safetensors", b"torn"), "with the weights is damaged"),
    "no numbers": (
        reweighted(lambda weights: weights[BIAS].fill_(torch.nan)),
        f"the weight {BIAS} contains NaN",
    ),
    "a weight less": (
        reweighted(lambda weights: weights.pop(BIAS)),
        f"the weight {BIAS} is missing",
    ),
    "a weight more": (
        reweighted(lambda weights: weights.update(more=torch.ones(3))),
        "there is a weight more",
    ),
    "another vocabulary": (
        reconfigured(vocab_size=300),
        "the weight model.embed_tokens.weight is [257, 16] and by config.json [300, 16]",
    ),
    "a torn tokenizer": (written("tokenizer.json", b"{"), "the tokenizer is damaged"),
    "no tokenizer's": (written("tokenizer.json", b"{}"), "the tokenizer is damaged"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_damaged_model_raises_one_line(folder, tmp_path, capfd, case):
    change, reason = BROKEN[case]
    model = shutil.copytree(folder / "model", tmp_path / "model")
    change(model)
    assert cli.main(["lm", "generate", str(model), "--prompt", "the", "--tokens", "3"]) == 1
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("eattn: ") and printed.err.count("\n") == 1
    assert str(model) in printed.err and reason in printed.err


def writing(folder, tokens: int) -> subprocess.Popen:
    args = ["lm", "generate", str(folder / "model"), "--prompt", "the", "--endless"]
    args += ["--tokens", str(tokens), "--seed", "0", "--top-k", "60"]
    return subprocess.Popen(
        [sys.executable, "-m", "eattn", *args],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_an_interrupt_ends_generation_cleanly(folder):
    process = writing(folder, 10**9)
    assert process.stdout is not None
    assert len(process.stdout.read(100)) == 100  # of an endless text
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate()
    assert process.returncode == 130
    assert err == b"eattn: interrupted\n"
    assert rest.endswith(b"\n")


def test_a_closed_pipe_ends_generation_quietly(folder):
    process = writing(folder, 10**9)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0
