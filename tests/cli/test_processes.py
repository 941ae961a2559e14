"""`fit` under torchrun gives the forecaster of one process, and as good a classifier."""

import numpy as np
import pandas as pd
import pytest
from cli import fit_helpers as fitting
from numpy.testing import assert_allclose
from torchrun_helpers import torchrun

from eattn.data import read_ts
from eattn.timeseries import EAClassifier, EAForecaster

NAMES = ("one", "two", "two/fsdp")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, whole_fits):
    """Models of one process in `one`, and of two in `two` (DDP) and `two/fsdp`.

    Of 33 series and batches of 16 one is left over, of one channel: DDP has a warning for that.
    """
    folder, rng = tmp_path_factory.mktemp("commands"), np.random.default_rng(0)
    rows = [
        ",".join(f"{x:.3f}" for x in rng.normal(size=10) + i % 2) + f":{'ab'[i % 2]}"
        for i in range(33)
    ]
    header = ["@problemName Tiny", "@univariate true", "@classLabel true a b", "@data"]
    (folder / "train.ts").write_text("\n".join([*header, *rows]) + "\n")
    hours = pd.date_range("2024-01-01", periods=97, freq="h")
    table = pd.DataFrame({"date": hours, "OT": np.sin(np.arange(97) / 3)})
    table.to_csv(folder / "data.csv", index=False)
    answer = torchrun("cli.fit_helpers", folder, folder / "two")
    assert answer.returncode == 0, answer.stderr
    assert "Warning" not in answer.stderr
    with pytest.MonkeyPatch.context() as patch:
        for estimator in (EAClassifier, EAForecaster):  # and back
            patch.setitem(estimator.__init__.__kwdefaults__, "dropout", None)
        fitting.main(folder, folder / "one")
    return folder


def test_classifier_of_two_processes_learns_as_well_as_one(folder):
    """DDP and FSDP give the same networks, and the kernels are those of one process.

    The networks of one process differ: each process augments its own series, and normalises them
    with the statistics of its own half of the batch.
    """
    samples = read_ts(folder / "train.ts")
    models = [EAClassifier.load(folder / n / "classifier") for n in NAMES]
    one, *two = (model.model_.kernels.head.weight for model in models)
    for found in two:
        assert_allclose(found, one, atol=1e-4)
    for model in models:
        model.model_.kernels = None  # so that the networks decide alone
        assert model.score(samples.X, samples.y) > 0.75
    ddp, fsdp = (model.predict_proba(samples.X) for model in models[1:])
    assert_allclose(fsdp, ddp, atol=1e-4)


def test_forecaster_of_two_processes_matches_one(folder):
    one, *two = (EAForecaster.load(folder / n / "forecaster").predict() for n in NAMES)
    for found in two:
        assert_allclose(found["EAForecaster"], one["EAForecaster"], atol=1e-4)
    assert [path.name for path in (folder / "two" / "checkpoint").iterdir()] == ["last.pt"]


def test_write_error_of_rank_0_is_reported_by_all(folder):
    for rank in range(2):
        assert "No space left on device" in (folder / f"full.{rank}").read_text()
