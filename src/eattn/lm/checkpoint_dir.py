"""A language model as a directory: train into it, save, load.

It holds the files of `save_pretrained` and `training.json`, the history of the training. During the
training it holds only `checkpoint`, from which the same command resumes.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging

from eattn._io import replace_directory, write_json
from eattn.data.text import Text, load_text
from eattn.hf import EAForCausalLM
from eattn.lm.training import LMConfig, TrainedLM, train_lm
from eattn.train import CheckpointError, torchrun
from eattn.train.identity import check_resumable

CHECKPOINT, HISTORY, CONFIG = "checkpoint", "training.json", "config.json"
RUN, TOKENIZER = "run.json", "tokenizer"  # in the checkpoint
PARTS = (CONFIG, "generation_config.json", "model*.safetensors*", HISTORY, "tokenizer*.json")
CHECKPOINT_SECONDS = 30.0


def train_to_dir(
    files: Sequence[Path],
    out: Path,
    config: LMConfig,
    *,
    force: bool = False,
    fsdp: bool = False,
    sequence_parallel: int = 1,
    device: str = "auto",
    tensorboard: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> tuple[TrainedLM, Text] | None:
    """Train a language model on files and save it; an interrupted run is resumed.

    Parameters
    ----------
    files : sequence of Path
        Files or folders; empty: Python's standard library.
    out : Path
        Directory to write, which all processes must see.
    config : LMConfig
    force : bool, default False
        Overwrite another model or run.
    fsdp, sequence_parallel
        As in `eattn.train.torchrun`.
    device, tensorboard, progress
        As in `eattn.train.TrainConfig` and `eattn.train.train`.

    Returns
    -------
    tuple of TrainedLM and Text, or None on all ranks but the first
    """
    with torchrun(fsdp=fsdp, sequence_parallel=sequence_parallel) as processes:
        processes.on_first_rank(lambda: check_free(out, force=force))
        text = load_text(files)
        processes.on_first_rank(lambda: start(out, text, config, force=force))
        checkpoint = out / CHECKPOINT
        trained = train_lm(
            text,
            config,
            tokenizer=PreTrainedTokenizerFast.from_pretrained(checkpoint / TOKENIZER),
            progress=progress,
            device=device,
            tensorboard=tensorboard,
            checkpoint=checkpoint,
            checkpoint_seconds=CHECKPOINT_SECONDS,
        )
        processes.on_first_rank(lambda: save(trained, out, text, config))
        return (trained, text) if processes.first else None


def check_free(out: Path, *, force: bool) -> None:
    """Raise if a model must not be written to `out`, before a long training."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder, got the file {out}")
    held = sorted(path.name for path in out.iterdir()) if out.exists() else []
    parts = (CHECKPOINT, *PARTS)
    other = [name for name in held if not any(fnmatch(name, part) for part in parts)]
    if other:
        raise ValueError(f"{out} holds {other[0]}, which is no part of a model: choose another")
    if CONFIG in held and not force:
        raise ValueError(f"{out} holds a model already: --force overwrites it")


def start(out: Path, text: Text, config: LMConfig, *, force: bool) -> None:
    """Make the checkpoint of a new run, with its tokenizer, or keep that of the same run.

    The checkpoint of another run raises, or is replaced with `force`.
    """
    folder = out / CHECKPOINT
    if (folder / RUN).exists():
        try:
            check_resumable(folder / RUN, _read(folder / RUN), _describe(text, config))
            return
        except CheckpointError as error:
            if not force:
                raise ValueError(f"{error}; --force starts again") from None
    with replace_directory(folder) as fresh:
        config.make_tokenizer(text).save_pretrained(fresh / TOKENIZER)
        write_json(fresh / RUN, _describe(text, config))


def save(trained: TrainedLM, out: Path, text: Text, config: LMConfig) -> None:
    """Write the model, its tokenizer and its history in place of what `out` holds."""
    about = {
        "config": _describe(text, config)["configuration"],
        "validation": [document.name for document in text.validation],
        "points": [asdict(point) for point in trained.points],
    }
    with replace_directory(out) as fresh:
        with _quiet():
            trained.model.save_pretrained(fresh)
        trained.tokenizer.save_pretrained(fresh)
        write_json(fresh / HISTORY, about)


def load(folder: Path) -> tuple[EAForCausalLM, Any]:
    """Load a saved model and its tokenizer; raise ValueError unless both are complete."""
    if not folder.is_dir():
        what = "got a file" if folder.exists() else "it does not exist"
        raise ValueError(f"{folder} must be the folder of a saved model, {what}")
    if not (folder / CONFIG).is_file():
        training = (folder / CHECKPOINT).is_dir()
        why = "it is still being trained" if training else f"it has no {CONFIG}"
        raise ValueError(f"{folder} holds no saved model: {why}")
    kind = _read(folder / CONFIG).get("model_type")
    if kind != EAForCausalLM.config_class.model_type:
        raise ValueError(f"{folder} holds a model of type {kind!r}, not a language model of eattn")
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(f"{folder} holds no tokenizer: it has no tokenizer.json")
    model = load_model(folder)
    return model, load_tokenizer(folder, model)


def load_tokenizer(folder: Path, model: EAForCausalLM) -> Any:
    """Load the tokenizer that was saved with a model."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # damaged files raise errors of many types
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{folder}: the tokenizer is damaged: {reason}") from None
    if len(tokenizer) > model.config.vocab_size:
        raise ValueError(
            f"{folder}: the tokenizer has {len(tokenizer)} tokens and the model vocab_size ="
            f" {model.config.vocab_size}: they do not belong together"
        )
    return tokenizer


def load_model(folder: Path) -> EAForCausalLM:
    """Load a model; raise if its weights do not match, where transformers would only warn."""
    options: Any = dict(local_files_only=True, output_loading_info=True)
    try:
        with _quiet():
            model, info = AutoModelForCausalLM.from_pretrained(
                folder, ignore_mismatched_sizes=True, **options
            )
    except SafetensorError as error:
        raise ValueError(f"{folder}: the file with the weights is damaged: {error}") from None
    for name, held, wanted in sorted(info["mismatched_keys"]):
        raise ValueError(
            f"{folder}: the weight {name} is {list(held)} and by {CONFIG} {list(wanted)}:"
            " they do not belong together"
        )
    for name in sorted(info["missing_keys"]):
        raise ValueError(f"{folder}: the weight {name} is missing, which {CONFIG} asks for")
    for name in sorted(info["unexpected_keys"]):
        raise ValueError(f"{folder}: there is a weight {name}, which {CONFIG} does not ask for")
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Disable the progress bars and reports of transformers."""
    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def _describe(text: Text, config: LMConfig) -> dict[str, dict[str, Any]]:
    return {"configuration": asdict(config) | {"text": text.fingerprint}}


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged, no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged, no JSON object")
    return found
