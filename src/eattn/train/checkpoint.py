"""What holds a whole run, in a file or a folder: it is there complete, or it is the one before."""

import hashlib
import os
import shutil
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from eattn._io import replace_file, sync
from eattn.train.errors import CheckpointError, lost

if TYPE_CHECKING:
    from eattn.train.processes import Processes

FORMAT = 1
NAME = "last.pt"
SHARED = (
    "step-[0-9]*[0-9]"  # folders of several processes; one that is being written ends otherwise
)
PLAIN = "run.pt"  # in such a folder


class Checkpoint:
    """`last.pt` in a folder of its own, for one run at a time.

    What is saved are tensors and plain values, read back without running any code from the file
    (`weights_only=True`), its checksums compared. Writing goes to a file beside it that takes its
    name once it is on the disk, so that a kill at any moment leaves a whole one.

    Several processes write `step-N` instead, a folder in the format of
    torch.distributed.checkpoint: each its part of the weights, and the first what is plain, with
    the checksums of the others. Any number of processes can read either. That format has an index
    in pickle, which is code: it must be one's own.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.path = self.folder / NAME
        if self.folder.exists() and not self.folder.is_dir():
            raise CheckpointError(f"checkpoint must be a folder, got the file {self.folder}")
        self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, state: dict[str, Any]) -> None:
        """Replace what is there."""
        self._write(self.path, state, self.path)
        self._leave(self.path)

    def save_shared(
        self, plain: dict[str, Any], tensors: dict[str, Any], processes: "Processes"
    ) -> None:
        """Replace what is there by what all processes have: each calls this with its parts."""
        whole = self.folder / f"step-{plain['standing']['step']:08}"
        partial = whole.with_suffix(".partial")
        processes.once(lambda: _empty(partial))
        import torch.distributed.checkpoint as dcp  # slow to import, and seldom needed

        try:
            dcp.save(tensors, storage_writer=dcp.FileSystemWriter(partial))
        except dcp.api.CheckpointException as error:
            raise OSError(f"cannot write the checkpoint {whole}: {_said(error)}") from error
        seen = processes.together(lambda: {path.name for path in partial.iterdir()})
        names = sorted(set().union(*processes.gather(seen)))
        files = _checksums(partial, names, processes)
        if unseen := [name for name in names if files[name] is None]:
            raise OSError(
                f"cannot write the checkpoint {whole}: not all processes see {unseen[0]},"
                " they must share the folder"
            )
        processes.once(lambda: self._finish(partial, whole, plain | {"files": files}))

    def _finish(self, partial: Path, whole: Path, plain: dict[str, Any]) -> None:
        """Make of the parts in a folder a checkpoint, the only one."""
        self._write(partial / PLAIN, plain, whole)
        shutil.rmtree(whole, ignore_errors=True)
        os.replace(partial, whole)
        sync(self.folder)
        self._leave(whole)

    def newest(self) -> Path | None:
        """What a run goes on from: the file, a folder of several processes, or nothing."""
        shared = sorted(self.folder.glob(SHARED))
        if not shared:
            return self.path if self.path.exists() else None
        state = self.load()  # a kill between writing the one and removing the other leaves both
        if state is None or state["standing"]["step"] < int(shared[-1].name.partition("-")[2]):
            return shared[-1]
        return self.path

    def load(self) -> dict[str, Any] | None:
        """What one process saved last, on the CPU; None where nothing was."""
        return self._read(self.path) if self.path.exists() else None

    def load_plain(self, folder: Path, processes: "Processes") -> dict[str, Any]:
        """What is plain in what several processes saved, all of whose files must be as they were.

        Each process looks at some of them, and all raise if one is not.
        """
        state = processes.once(lambda: self._read(folder / PLAIN))
        found = _checksums(folder, list(state["files"]), processes)
        for name, checksum in state["files"].items():
            if found[name] != checksum:
                what = "is missing" if found[name] is None else "is damaged, its checksum is wrong"
                raise CheckpointError(f"{folder / name} {what}: delete {folder} to start anew")
        return state

    def fill_shared(self, folder: Path, tensors: dict[str, Any]) -> None:
        """Read what several processes saved into these tensors, whole ones or parts."""
        import torch.distributed.checkpoint as dcp

        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
                dcp.load(tensors, storage_reader=dcp.FileSystemReader(folder))
        # A damaged file may make anything of its readers; dcp's own is no Exception.
        except (Exception, dcp.api.CheckpointException) as error:
            cause = _cause(error)
            if isinstance(cause, OSError) or not isinstance(cause, Exception) or lost(cause):
                raise cause from None  # this is not the checkpoint's fault
            raise CheckpointError(
                f"{folder} is damaged or no checkpoint ({_said(error)}): delete it to start anew"
            ) from error

    def _leave(self, kept: Path) -> None:
        """Remove all other checkpoints."""
        for other in [self.path, *self.folder.glob("step-*")]:
            if other != kept and other.is_dir():
                shutil.rmtree(other, ignore_errors=True)
            elif other != kept:
                other.unlink(missing_ok=True)

    def _write(self, path: Path, state: dict[str, Any], of: Path) -> None:
        """Write a file of the checkpoint `of` atomically."""
        try:
            with replace_file(path) as partial, open(partial, "wb") as file:
                torch.save({"format": FORMAT} | state, file)
        except (OSError, RuntimeError) as error:  # torch's own words hide what the disk said
            reason = error.__context__ if isinstance(error, RuntimeError) else error
            raise OSError(f"cannot write the checkpoint {of}: {reason or error}") from error

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            with zipfile.ZipFile(path) as archive:
                if (name := archive.testzip()) is not None:  # torch.load compares no checksum
                    raise zipfile.BadZipFile(f"{name} has a wrong checksum")
            state = torch.load(path, map_location="cpu", weights_only=True)
        except PermissionError:
            raise
        except Exception as error:  # a damaged file may make anything of its readers
            raise CheckpointError(
                f"{path} is damaged or no checkpoint ({_said(error)}): delete it to start anew"
            ) from error
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            found = state.get("format") if isinstance(state, dict) else None
            raise CheckpointError(
                f"{path} must be a checkpoint of format {FORMAT}, got {found}:"
                " delete it to start anew"
            )
        return state

    @staticmethod
    def check(path: Path, saved: dict[str, Any], mine: dict[str, Any]) -> None:
        """That a description saved there, of {what: {name: value}}, is that of this run."""
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
                    f"{path} is of another {what}: {', '.join(told)}{more};"
                    " delete it to start anew, or choose another folder"
                )


def _cause(error: BaseException) -> BaseException:
    """What dcp's exception is about: of the first process that had one."""
    failures = getattr(error, "failures", None)
    return next(iter(failures.values()))[0] if failures else error


def _said(error: BaseException) -> str:
    """The first line of why."""
    cause = _cause(error)
    return str(cause).strip().partition("\n")[0] or type(cause).__name__


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def _checksums(folder: Path, names: list[str], processes: "Processes") -> dict[str, str | None]:
    """Of these files, None where there is no such one; each process reads its share of them."""
    mine = names[processes.rank :: processes.count]
    found = processes.together(lambda: {name: _checksum(folder / name) for name in mine})
    return {name: x for part in processes.gather(found) for name, x in part.items()}


def _checksum(path: Path) -> str | None:
    if not path.exists():
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
