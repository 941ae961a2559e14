"""A language model as a folder: what `save_pretrained` writes, and how it came about.

While it is being trained the folder holds `checkpoint`, from which the same command goes on.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging

from eattn._io import sync, write_json
from eattn.data.text import Text
from eattn.hf import EAForCausalLM
from eattn.lm.settings import Settings
from eattn.lm.training import Learnt, make_tokenizer
from eattn.train import Checkpoint, CheckpointError

CHECKPOINT, HISTORY, CONFIG = "checkpoint", "training.json", "config.json"
SETTINGS, TOKENIZER, FRESH = "settings.json", "tokenizer", "model"
PARTS = (CONFIG, "generation_config.json", "model*.safetensors*", HISTORY, "tokenizer*.json")


def check_free(out: Path, *, force: bool) -> None:
    """That a model may be written there: before a long training, so that it is not for nothing."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder, got the file {out}")
    held = sorted(path.name for path in out.iterdir()) if out.exists() else []
    if other := [name for name in held if name != CHECKPOINT and not _is_part(name)]:
        raise ValueError(f"{out} holds {other[0]}, which is no part of a model: choose another")
    if CONFIG in held and not force:
        raise ValueError(f"{out} holds a model already: --force overwrites it")


def goes_on(out: Path, text: Text, settings: Settings, *, force: bool) -> bool:
    """Whether a checkpoint there is of this very run; one of another is refused without `force`."""
    path = out / CHECKPOINT / SETTINGS
    if not path.exists():
        return False
    try:
        Checkpoint.check(path, {"run": _read(path)}, {"run": _deciding(text, settings)})
    except CheckpointError as error:
        if not force:
            raise ValueError(f"{error}; --force starts anew") from None
        return False
    return True


def begin(out: Path, text: Text, settings: Settings) -> None:
    """Make the checkpoint folder of a run, with its tokenizer, in the place of any other."""
    folder = out / CHECKPOINT
    _remove(folder)
    folder.mkdir(parents=True)
    make_tokenizer(text, settings).save_pretrained(folder / TOKENIZER)
    write_json(folder / SETTINGS, _deciding(text, settings))  # last: without it nothing was begun


def tokenizer_of(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a run that was begun."""
    return PreTrainedTokenizerFast.from_pretrained(folder / TOKENIZER)


def save(learnt: Learnt, out: Path, text: Text, settings: Settings) -> None:
    """Write the model, its tokenizer and its history; a checkpoint there has served its time.

    All is written beside and then moved: a kill leaves the old model, or a checkpoint that has
    only this left to do.
    """
    fresh = out / CHECKPOINT / FRESH
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    with _quiet():
        learnt.model.save_pretrained(fresh)
    learnt.tokenizer.save_pretrained(fresh)
    points = [asdict(point) for point in learnt.points]
    held_out = [document.name for document in text.held_out]
    about = {"settings": _deciding(text, settings), "held_out": held_out, "points": points}
    write_json(fresh / HISTORY, about)
    for path in fresh.iterdir():
        sync(path)
    for old in [path for path in out.iterdir() if _is_part(path.name)]:
        old.unlink()
    for path in sorted(fresh.iterdir(), key=lambda path: path.name == CONFIG):  # it comes last
        os.replace(path, out / path.name)
    sync(out)
    _remove(out / CHECKPOINT)


def load(folder: Path) -> tuple[EAForCausalLM, Any]:
    """A saved model and its tokenizer, which must fit each other."""
    if not folder.is_dir():
        what = "got a file" if folder.exists() else "there is none"
        raise ValueError(f"{folder} must be the folder of a saved model, {what}")
    if not (folder / CONFIG).is_file():
        begun = (folder / CHECKPOINT).is_dir()
        why = "it is still being trained" if begun else f"it has no {CONFIG}"
        raise ValueError(f"{folder} holds no saved model: {why}")
    kind = _read(folder / CONFIG).get("model_type")
    if kind != EAForCausalLM.config_class.model_type:
        raise ValueError(f"{folder} holds a model of type {kind!r}, not a language model of eattn")
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(f"{folder} holds no tokenizer: it has no tokenizer.json")
    model = load_model(folder)
    return model, fitting_tokenizer(folder, model)


def fitting_tokenizer(folder: Path, model: EAForCausalLM) -> Any:
    """The tokenizer that was saved with a model."""
    tokenizer = _load_tokenizer(folder)
    if len(tokenizer) > model.config.vocab_size:
        raise ValueError(
            f"{folder}: the tokenizer has {len(tokenizer)} tokens and the model vocab_size ="
            f" {model.config.vocab_size}: they do not belong together"
        )
    return tokenizer


def load_model(folder: Path) -> EAForCausalLM:
    """With all weights from its file, and no other: the library would make up what is not there."""
    options: Any = dict(local_files_only=True, output_loading_info=True)
    try:
        with _quiet():
            model, told = AutoModelForCausalLM.from_pretrained(
                folder, ignore_mismatched_sizes=True, **options
            )
    except SafetensorError as error:
        raise ValueError(f"{folder}: the file with the weights is damaged: {error}") from None
    for name, held, wanted in sorted(told["mismatched_keys"]):
        raise ValueError(
            f"{folder}: the weight {name} is {list(held)} and by {CONFIG} {list(wanted)}:"
            " they do not belong together"
        )
    for name in sorted(told["missing_keys"]):
        raise ValueError(f"{folder}: the weight {name} is missing, which {CONFIG} asks for")
    for name in sorted(told["unexpected_keys"]):
        raise ValueError(f"{folder}: there is a weight {name}, which {CONFIG} does not ask for")
    return model


def _load_tokenizer(folder: Path) -> Any:
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # of any kind, from JSON to Rust
        why = str(error).strip().partition("\n")[0]
        raise ValueError(f"{folder}: the tokenizer is damaged: {why}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's own progress bars and reports."""
    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def _remove(folder: Path) -> None:
    """A checkpoint folder; what a kill leaves of it is no run to go on with."""
    if folder.exists():
        (folder / SETTINGS).unlink(missing_ok=True)
        shutil.rmtree(folder)


def _is_part(name: str) -> bool:
    return any(fnmatch(name, part) for part in PARTS)


def _deciding(text: Text, settings: Settings) -> dict[str, Any]:
    """All that decides what a run gives."""
    return asdict(settings) | {"text": text.fingerprint}


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged, no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged, no JSON object")
    return found
