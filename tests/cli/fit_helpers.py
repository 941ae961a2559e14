"""Run `classify fit` and `forecast fit`, also under `torchrun -m cli.fit_helpers FOLDER OUT`.

FOLDER holds `train.ts` and `data.csv`; a model of each is saved in OUT, and under torchrun also
in OUT/fsdp, trained with sharded weights.
"""

import io
import os
import sys
from contextlib import redirect_stderr
from pathlib import Path
from unittest.mock import patch

from eattn import cli
from eattn.timeseries import EAClassifier, EAForecaster

SMALL = ("--dim", 8, "--depth", 1, "--epochs", 3, "--lr", 0.01)


def main(folder: Path, out: Path, *more: str) -> None:
    # Processes draw different dropout masks, and the commands have no option to disable dropout.
    for estimator in (EAClassifier, EAForecaster):
        estimator.__init__.__kwdefaults__["dropout"] = 0.0
    classify = ["classify", "fit", folder / "train.ts", "--out", out / "classifier", *SMALL]
    classify += ["--validation", 0]
    forecast = ["forecast", "fit", folder / "data.csv", "--out", out / "forecaster", *SMALL]
    forecast += ["--pretrained", "none", "--horizon", 3, "--checkpoint", out / "checkpoint"]
    for args in (classify, forecast):
        if code := cli.main([*map(str, args), *more, "--debug"]):
            sys.exit(code)


def full(folder: Path, out: Path) -> None:
    """Fail to save on a full disk; write the stderr of each process to FOLDER/full.RANK."""
    stderr = io.StringIO()
    error = OSError(28, "No space left on device")
    args = ["classify", "fit", folder / "train.ts", "--out", out, *SMALL, "--epochs", 1]
    with redirect_stderr(stderr), patch.object(EAClassifier, "save", side_effect=error):
        assert cli.main([*map(str, args)])
    (folder / f"full.{os.environ['RANK']}").write_text(stderr.getvalue())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
    main(Path(sys.argv[1]), Path(sys.argv[2]) / "fsdp", "--fsdp")
    full(Path(sys.argv[1]), Path(sys.argv[2]) / "full")
