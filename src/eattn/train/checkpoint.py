"""One file that holds a whole run: it is there complete, or it is the one before."""

import os
import zipfile
from pathlib import Path
from typing import Any

import torch

from eattn.train.errors import CheckpointError

FORMAT = 1
NAME = "last.pt"


class Checkpoint:
    """`last.pt` in a folder of its own, for one run at a time.

    What is saved are tensors and plain values, read back without running any code from the file
    (`weights_only=True`), its checksums compared. Writing goes to a file beside it that takes its
    name once it is on the disk, so that a kill at any moment leaves a whole one.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.path = self.folder / NAME
        if self.folder.exists() and not self.folder.is_dir():
            raise CheckpointError(f"checkpoint must be a folder, got the file {self.folder}")
        self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, state: dict[str, Any]) -> None:
        """Replace what is there."""
        partial = self.path.with_suffix(".partial")
        try:
            with open(partial, "wb") as file:
                torch.save({"format": FORMAT} | state, file)
                file.flush()
                os.fsync(file.fileno())
        except (OSError, RuntimeError) as error:  # torch's own words hide what the disk said
            reason = error.__context__ if isinstance(error, RuntimeError) else error
            partial.unlink(missing_ok=True)
            raise OSError(f"cannot write the checkpoint {self.path}: {reason or error}") from error
        os.replace(partial, self.path)
        _sync_folder(self.folder)

    def load(self) -> dict[str, Any] | None:
        """What was saved last, on the CPU; None where nothing was."""
        if not self.path.exists():
            return None
        try:
            with zipfile.ZipFile(self.path) as archive:
                if (name := archive.testzip()) is not None:  # torch.load compares no checksum
                    raise zipfile.BadZipFile(f"{name} has a wrong checksum")
            state = torch.load(self.path, map_location="cpu", weights_only=True)
        except PermissionError:
            raise
        except Exception as error:  # a damaged file may make anything of its readers
            reason = str(error).partition("\n")[0]
            raise CheckpointError(
                f"{self.path} is damaged or no checkpoint ({reason}): delete it to start anew"
            ) from error
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            found = state.get("format") if isinstance(state, dict) else None
            raise CheckpointError(
                f"{self.path} must be a checkpoint of format {FORMAT}, got {found}:"
                " delete it to start anew"
            )
        return state

    def check(self, saved: dict[str, Any], mine: dict[str, Any]) -> None:
        """That a saved description, of {what: {name: value}}, is that of this run."""
        for what, values in mine.items():
            before = saved[what]
            names = [n for n in before | values if before.get(n, ...) != values.get(n, ...)]
            if names:
                told = [
                    f"{n} was {before.get(n, 'absent')} and is {values.get(n, 'absent')}"
                    for n in names[:3]
                ]
                more = f", and {len(names) - 3} more" if len(names) > 3 else ""
                raise CheckpointError(
                    f"{self.path} is of another {what}: {', '.join(told)}{more};"
                    " delete it to start anew, or choose another folder"
                )


def _sync_folder(folder: Path) -> None:
    """Make the new name last, where a folder can be opened: not on Windows."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
