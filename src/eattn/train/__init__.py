"""Training: one loop for all tasks, which goes on where it was killed.

`train(model, Task(cases, loss), TrainConfig(...))`. Read `task` and `cases` for what is learnt,
`config` for what can be chosen, `plan` for what follows from that, and `loop` for the loop.
"""

from eattn.train.checkpoint import Checkpoint
from eattn.train.config import TrainConfig
from eattn.train.dataset import Batch, Cases, ListCases, TensorCases, batches, move
from eattn.train.errors import CheckpointError, TrainingError
from eattn.train.history import History, Row
from eattn.train.loop import train
from eattn.train.optim import make_optimizer
from eattn.train.processes import Processes, torchrun
from eattn.train.rng import isolated, seed_everything
from eattn.train.schedule import Plan
from eattn.train.task import Task

__all__ = [
    "Batch",
    "Cases",
    "Checkpoint",
    "CheckpointError",
    "History",
    "ListCases",
    "Plan",
    "Processes",
    "Row",
    "Task",
    "TensorCases",
    "TrainConfig",
    "TrainingError",
    "batches",
    "isolated",
    "make_optimizer",
    "move",
    "seed_everything",
    "torchrun",
    "train",
]
