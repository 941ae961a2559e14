"""Atomic checkpoints: a reader sees either the new checkpoint or the previous one."""

import os
import zipfile
from pathlib import Path
from typing import Any

import torch

from eattn._io import replace_file

FORMAT = 2
NAME = "last.pt"


class CheckpointError(ValueError):
    """A checkpoint that is damaged, or belongs to another run."""


class Checkpoint:
    """The file `last.pt` in a folder that belongs to one run.

    It holds tensors and plain values, and loading it runs no code (`weights_only=True`).
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.path = self.folder / NAME
        if self.folder.exists() and not self.folder.is_dir():
            raise CheckpointError(f"checkpoint must be a folder, got the file {self.folder}")
        self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, state: dict[str, Any]) -> None:
        """Replace the file; a kill or a full disk leaves the previous one."""
        try:
            with replace_file(self.path) as partial, open(partial, "wb") as file:
                torch.save({"format": FORMAT} | state, file)
        except (OSError, RuntimeError) as error:  # torch's own error hides the reason
            reason = error.__context__ if isinstance(error, RuntimeError) else error
            raise OSError(f"cannot write the checkpoint {self.path}: {reason or error}") from error

    def load(self) -> dict[str, Any] | None:
        """Return the state on the CPU, or None without a checkpoint; raise if it is damaged."""
        if not self.path.exists():
            if any(self.folder.glob("step-*")):
                raise CheckpointError(
                    f"{self.folder} holds a checkpoint of eattn 0.1: delete it to start again"
                )
            return None
        try:
            with zipfile.ZipFile(self.path) as archive:
                if (name := archive.testzip()) is not None:  # torch.load compares no checksum
                    raise zipfile.BadZipFile(f"{name} has a wrong checksum")
            state = torch.load(self.path, map_location="cpu", weights_only=True)
        except PermissionError:
            raise
        except Exception as error:  # damaged files raise errors of many types
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise CheckpointError(
                f"{self.path} is damaged or no checkpoint ({reason}): delete it to start again"
            ) from error
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            found = state.get("format") if isinstance(state, dict) else None
            raise CheckpointError(
                f"{self.path} must be a checkpoint of format {FORMAT}, got {found}:"
                " delete it to start again"
            )
        return state
