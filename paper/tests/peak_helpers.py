"""Measure peak memory in forks of one process that has imported torch, not in new processes."""

import io
import json
import multiprocessing
from contextlib import redirect_stdout
from multiprocessing.connection import Connection
from typing import Any

from torchrun_helpers import PRELOADED

from paper.harness import peak


def trial(
    target: str, most: int | None = None, /, *, limit: float | None = None, **options: Any
) -> dict[str, Any]:
    """Return what `peak.trial` returns; there is no limit on the time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_measure, args=(sender, target, most, options))
    child.start()
    child.join()
    if child.exitcode:
        return {"reason": peak._reason(child.exitcode, "out of memory")}
    return receiver.recv()


def _measure(sender: Connection, target: str, most: int | None, options: dict[str, Any]) -> None:
    with redirect_stdout(io.StringIO()) as printed:
        peak.main(target, json.dumps(options), *([] if most is None else [str(most)]))
    sender.send(json.loads(printed.getvalue()))
