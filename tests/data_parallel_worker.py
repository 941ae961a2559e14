"""Train language models in any number of processes."""

import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from safetensors.torch import load_file
from torch import Tensor
from torchrun_helpers import norms
from train.problem_helpers import Interrupted

from eattn import cli
from eattn.data.text import Document, Text, split
from eattn.lm import LMConfig, checkpoint_dir, train_lm, train_to_dir, training
from eattn.timeseries import EAClassifier
from eattn.train import Processes, torchrun

MODES: dict[int, dict[str, dict[str, Any]]] = {
    4: {
        "ddp and sequence": dict(sequence_parallel=2),
        "fsdp and sequence": dict(fsdp=True, sequence_parallel=2),
    },
    2: {"ddp": {}, "fsdp": dict(fsdp=True), "sequence": dict(sequence_parallel=2)},
}
CONFIG = LMConfig(
    hidden=8,
    layers=2,
    length=24,
    batch_tokens=96,
    steps=6,
    positions=True,
    evaluations=3,
    validation_tokens=48,
    lr=0.02,
)
Result = dict[str, Any]


def text() -> Text:
    """Documents shorter and longer than a row: sequences begin and end anywhere."""
    lines = [f"line {i} says {'again ' * (i % 5)}{i * i}\n".encode() for i in range(40)]
    return split([Document(str(i), b"".join(lines[i : i + 1 + i % 4])) for i in range(30)])


def run(text: Text, config: LMConfig, **options: Any) -> Result:
    trained = train_lm(text, config, **options)
    rows = [(row.step, row.loss, row.metrics["bits_per_byte"]) for row in trained.history.rows]
    return {"rows": rows, "weights": dict(trained.model.state_dict())}


def language(**options: Any) -> Result:
    return run(text(), CONFIG, **options)


def short() -> Result:
    """Every row is a batch, and the last one a single token: fewer than processes."""
    documents = [Document("", b"a" * CONFIG.length), Document("", b"b" * CONFIG.length)]
    config = replace(CONFIG, batch_tokens=CONFIG.length, steps=4, evaluations=2)
    return run(Text(*((document,) for document in documents)), config)


def classifier(random_state: int | None = 0) -> None:
    X, y = np.random.default_rng(0).normal(size=(8, 2, 9)), np.arange(8) % 2
    EAClassifier(dim=8, depth=1, epochs=1, random_state=random_state).fit(X, y)


RUNS: dict[str, Callable[[], Result]] = {"language": language, "short": short}


def with_norms(run: Callable[[], Result]) -> Result:
    with norms() as found:
        return run() | {"norms": found}


def interrupt(folder: Path) -> None:
    """Run up to step 6 of the language model; its last checkpoint is that of step 4."""
    calls = iter(range(1, 10))

    def fail(*args: Any) -> tuple[Tensor, float]:
        if next(calls) == 6:
            raise Interrupted
        return loss(*args)

    loss = training.loss
    try:
        with patch.object(training, "loss", fail):
            language(checkpoint=folder, checkpoint_every=2)
    except Interrupted:
        pass


def command(out: Path, *options: str) -> Result:
    """Train with `eattn lm train`, and return what it printed and saved."""
    files = [str(Path(__file__).with_name(f"{name}_helpers.py")) for name in ("text", "hf")]
    args = ["--hidden", "8", "--layers", "1", "--length", "24", "--batch-tokens", "96"]
    args += ["--steps", "6", "--lr", "0.02", "--text", *files, "--out", str(out), *options]
    with redirect_stdout(io.StringIO()) as printed:
        assert not cli.main(["lm", "train", *args, "--debug"])
    Processes.current().gather(None)  # wait for rank 0, which saves
    points = json.loads((out / "training.json").read_text())["points"]
    rows = [(point["tokens"], point["bits_per_byte"]) for point in points]
    weights = load_file(out / "model.safetensors")
    return {"printed": printed.getvalue(), "rows": rows, "weights": weights}


def work() -> dict[str, Any]:
    """Do all runs in all modes; two processes resume the checkpoint of four."""
    folder = Path(sys.argv[-1])
    world = Processes.current().count
    found: dict[str, Any] = {}
    for mode, options in MODES[world].items():
        with torchrun(**options):
            for name, each in RUNS.items():
                found[f"{name} {mode}"] = with_norms(each)
            if mode == "fsdp and sequence":
                interrupt(folder)
            if mode == "ddp":
                found["resumed"] = language(checkpoint=folder, checkpoint_every=2)
                classifier(random_state=None)  # raises unless all ranks draw the same seed
    if world == 2:
        found["command"] = command(folder.with_name("model"), "--fsdp", "--sequence-parallel", "2")
    found["errors"] = {name: error(**options) for name, options in ERRORS.items()}
    found["errors"]["full disk"] = full_disk(folder.with_name(f"full{world}"))
    return found


ERRORS: dict[str, dict[str, Any]] = {
    "3 of a sequence": dict(sequence_parallel=3),
    "a mixer": dict(mixer="sa"),
    "a text": dict(other=True),
    "a classifier": dict(work=classifier),
}


def error(
    mixer: str = "ea-6",
    sequence_parallel: int = 2,
    other: bool = False,
    work: Callable[[], None] | None = None,
) -> str:
    mine = text()
    if other and Processes.current().first:  # as long as that of the others
        documents = tuple(Document("", document.content.upper()) for document in mine.validation)
        mine = replace(mine, validation=documents)
    try:
        with torchrun(sequence_parallel=sequence_parallel):
            if work is None:
                train_lm(mine, replace(CONFIG, mixer=mixer))
            else:
                work()
    except ValueError as error:
        return str(error)
    return "nothing"


def full_disk(out: Path) -> str:
    """Return the message when the first process cannot start a run."""
    error = OSError(28, "No space left on device")
    try:
        with patch.object(checkpoint_dir, "start", side_effect=error):
            train_to_dir([Path(__file__)], out, CONFIG)
    except OSError as error:
        return str(error)
    return "nothing"


def difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    return max((ours[name] - x).abs().max().item() for name, x in theirs.items())
