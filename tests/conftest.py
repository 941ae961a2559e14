"""What holds for whole folders of tests."""

import signal
from collections.abc import Iterator

import pytest
import torch

# Whoever is started in the background ignores Ctrl-C, and so would the processes that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SMALL = {"export", "hf", "lm", "nn", "models", "train", "timeseries"}


@pytest.fixture(scope="module", autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Layers and models are tested on small inputs: a second thread costs more than it brings."""
    threads = torch.get_num_threads()
    if request.path.parent.name in SMALL:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def device_of_backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tensors are made where the backend under test runs: for Triton, on a card if there is one."""
    case = getattr(request.node, "callspec", None)
    if case is None or case.params.get("backend") != "triton" or not torch.cuda.is_available():
        yield
        return
    with torch.device("cuda"):
        yield
