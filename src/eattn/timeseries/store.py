"""A fitted model as a folder: config.json and weights.safetensors, which run no code when read."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from eattn._io import replace_directory

FORMAT = 1
KINDS = ("classifier", "forecaster")
CONFIG, WEIGHTS = "config.json", "weights.safetensors"
Folder = str | os.PathLike[str]


class ModelError(ValueError):
    """A folder that holds no model that can be read, or that may not be written to."""


def save(
    folder: Folder,
    kind: str,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    force: bool = False,
) -> None:
    """Write a model whole or not at all; `force` replaces one that is there, and only a model.

    `config` is what JSON can hold; tensors may be on any device.
    """
    import eattn

    check_free(folder, force=force)
    weights = safetensors.torch.save({name: _plain(x) for name, x in tensors.items()})
    written = {
        "format": FORMAT,
        "kind": _known(kind),
        "eattn": eattn.__version__,  # who wrote it, for people; `format` says who can read it
        "sha256": {"config": _checksum(_canonical(config)), "weights": _checksum(weights)},
        "config": dict(config),
    }
    text = json.dumps(written, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with replace_directory(folder) as fresh:
        (fresh / WEIGHTS).write_bytes(weights)
        (fresh / CONFIG).write_text(text, encoding="utf-8")


def load(folder: Folder, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the tensors, on the CPU, as they were given to `save`."""
    _known(kind)
    target = Path(folder)
    if not target.is_dir():
        raise ModelError(
            f"{target} must be the folder of a saved model, "
            + ("got a file" if target.exists() else "there is none")
        )
    written = _read_config(target)
    if written["kind"] != kind:
        raise ModelError(f"{target} is a {written['kind']}, not a {kind}")
    content = _read(target / WEIGHTS)
    if _checksum(content) != written["sha256"]["weights"]:
        raise ModelError(f"{target / WEIGHTS} is damaged: its checksum is not the one in {CONFIG}")
    try:
        return written["config"], safetensors.torch.load(content)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(f"{target / WEIGHTS} is no safetensors file: {reason}") from error


def kind_of(folder: Folder) -> str:
    """Which of KINDS a folder holds."""
    kind: str = _read_config(Path(folder))["kind"]
    return kind


def check_free(
    folder: Folder,
    *,
    force: bool = False,
    files: Sequence[str] = (CONFIG, WEIGHTS),
    what: str = "a model",
) -> None:
    """That `what`, of these files, may be written there: before long work, not after it."""
    target = Path(folder)
    if not target.exists():
        above = next(path for path in target.absolute().parents if path.exists())
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            why = "may not be written to" if above.is_dir() else "is a file"
            raise ModelError(f"{target} cannot be made: {above} {why}")
        return
    if not target.is_dir():
        raise ModelError(f"{target} must be a folder to save in, got a file")
    held = sorted(path.name for path in target.iterdir())
    if other := [name for name in held if name not in files]:
        raise ModelError(f"{target} holds {other[0]}, which is no part of {what}: choose another")
    if held and not force:
        raise ModelError(f"{target} holds {what} already: force (--force) overwrites it")


def _read_config(target: Path) -> dict[str, Any]:
    path = target / CONFIG
    try:
        written = json.loads(_read(path))
    except ValueError as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path} is damaged, no JSON: {error}") from error
    if not isinstance(written, dict) or not isinstance(written.get("format"), int):
        raise ModelError(f"{path} is no model of eattn: it has no format")
    if written["format"] > FORMAT:
        raise ModelError(
            f"{path} has format {written['format']}, this eattn reads up to {FORMAT}: "
            f"a newer one wrote it, version {written.get('eattn', 'unknown')}"
        )
    try:
        whole = _checksum(_canonical(written["config"])) == written["sha256"]["config"]
        whole = whole and isinstance(written["sha256"]["weights"], str)
        whole = whole and written["kind"] in KINDS
    except (KeyError, TypeError):
        whole = False
    if not whole:
        raise ModelError(f"{path} is damaged: something in it is missing or was changed")
    return written


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path.parent} holds no saved model: it has no {path.name}") from None


def _plain(x: Tensor) -> Tensor:
    """In memory of its own, as safetensors wants it."""
    return x.detach().cpu().clone(memory_format=torch.contiguous_format)


def _canonical(config: Any) -> bytes:
    return json.dumps(config, sort_keys=True, allow_nan=False).encode()


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    return kind
