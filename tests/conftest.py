"""Fixtures that apply to whole folders of tests."""

import signal
from collections.abc import Iterator

import pytest
import torch

# Background jobs ignore Ctrl-C, and the processes that tests start would inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SMALL = {"export", "hf", "lm", "nn", "models", "train", "timeseries"}


@pytest.fixture(scope="module", autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Use one thread for tests with small inputs, which are slower with two."""
    threads = torch.get_num_threads()
    if request.path.parent.name in SMALL:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def device_of_backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """Create tensors on the device of the tested backend: on the GPU for Triton, if available."""
    case = getattr(request.node, "callspec", None)
    if case is None or case.params.get("backend") != "triton" or not torch.cuda.is_available():
        yield
        return
    with torch.device("cuda"):
        yield
