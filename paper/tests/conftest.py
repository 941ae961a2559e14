"""Fixtures for all tests of the study."""

import os
from concurrent.futures import Executor, Future
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import peak_helpers
import pytest
import torch

from paper.harness import peak, pool

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores with the processes they start
    os.environ["OMP_NUM_THREADS"] = "1"


class Inline(Executor):
    """Run every call at once, in this process."""

    def __init__(self, *args: Any, **options: Any) -> None: ...

    def submit(self, work: Any, /, *args: Any, **options: Any) -> Future:
        made: Future = Future()
        made.set_result(work(*args, **options))
        return made


@pytest.fixture(scope="module", autouse=True)
def few_processes(request: pytest.FixtureRequest):
    """Start few processes: training runs in this one, with one thread, and trials are forked.

    The first stage of the training of forecasters is short.

    test_pool.py, test_peak.py and test_demo.py test the processes themselves.
    """
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        if request.path.name != "test_pool.py":
            patch.setattr(pool, "ProcessPoolExecutor", Inline)
            patch.setattr(pool, "as_completed", list)  # in order
        if request.path.name != "test_peak.py":
            patch.setattr(peak, "trial", peak_helpers.trial)
        if find_spec("pandas") and find_spec("sklearn"):
            patch.setattr("eattn.timeseries.training.DIRECT_STEPS", 10)
        yield


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from forecasting_helpers import write_all  # needs pandas

    folder = tmp_path_factory.mktemp("data")
    write_all(folder)
    return folder


@pytest.fixture
def small_data(small_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point EATTN_DATA to small datasets of the forecasting study."""
    monkeypatch.setenv("EATTN_DATA", str(small_folder))
