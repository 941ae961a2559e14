"""From files to a folder with a model: what `eattn lm train` does, in one process or several."""

import os
from collections.abc import Sequence
from pathlib import Path

from eattn.data.text import Text, load_text
from eattn.lm import checkpoint_dir
from eattn.lm.settings import Settings
from eattn.lm.training import Learnt, learn
from eattn.train import torchrun

EVERY = 30.0  # seconds between checkpoints


def run(
    files: Sequence[Path],
    out: Path,
    settings: Settings,
    *,
    force: bool = False,
    fsdp: bool = False,
    sequence_parallel: int = 1,
    device: str = "auto",
    tensorboard: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> tuple[Learnt, Text] | None:
    """Train on these files, or the standard library, and write out; a cut off run goes on.

    Under torchrun, `fsdp` and `sequence_parallel` say how processes share the work; `out` must be
    a folder that all of them see. None in all processes but the first.
    """
    checkpoint_dir.check_free(out, force=force)
    with torchrun(fsdp=fsdp, sequence_parallel=sequence_parallel) as processes:
        text = load_text(files)
        # All have looked before one writes.
        going = processes.together(lambda: checkpoint_dir.goes_on(out, text, settings, force=force))
        processes.once(lambda: None if going else checkpoint_dir.begin(out, text, settings))
        checkpoint = out / checkpoint_dir.CHECKPOINT
        learnt = learn(
            text,
            settings,
            tokenizer=checkpoint_dir.tokenizer_of(checkpoint),
            progress=progress,
            device=device,
            tensorboard=tensorboard,
            checkpoint=checkpoint,
            checkpoint_seconds=EVERY,
        )
        processes.once(lambda: checkpoint_dir.save(learnt, out, text, settings))
        return (learnt, text) if processes.first else None
