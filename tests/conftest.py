"""Fixtures that apply to whole folders of tests."""

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

# Background jobs ignore Ctrl-C, and the processes that tests start would inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores with the processes they start
    os.environ["OMP_NUM_THREADS"] = "1"
DIRECT_STEPS = "eattn.timeseries.training.DIRECT_STEPS"
torch.set_num_threads(1)  # inputs are small, and slower with two threads


@pytest.fixture(autouse=True, scope="session")
def short_fits() -> Iterator[None]:
    """Shorten the first stage of the training of forecasters, which tests rarely depend on."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("pandas") and find_spec("sklearn"):
            patch.setattr(DIRECT_STEPS, 10)
        yield


@pytest.fixture(scope="module")
def whole_fits() -> Iterator[None]:
    """Undo `short_fits` for the rest of a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DIRECT_STEPS, 150)
        yield


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Undo a change of the number of threads."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def device_of_backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """Create tensors on the device of the tested backend: on the GPU for Triton, if available."""
    case = getattr(request.node, "callspec", None)
    if case is None or case.params.get("backend") != "triton" or not torch.cuda.is_available():
        yield
        return
    with torch.device("cuda"):
        yield
