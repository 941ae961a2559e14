"""Training: one loop for all tasks, in one process or several, which resumes after a kill.

Start with `train(model, Task(dataset, loss), TrainConfig(...))`.
"""

from eattn.train.checkpoint import Checkpoint, CheckpointError
from eattn.train.config import TrainConfig
from eattn.train.history import History, Row
from eattn.train.loop import TrainingError, train
from eattn.train.optim import make_optimizer
from eattn.train.processes import Processes, torchrun
from eattn.train.rng import isolated, seed_everything
from eattn.train.schedule import Schedule
from eattn.train.task import Batch, Dataset, ListDataset, Task, TensorDataset, batches, move

__all__ = [
    "Batch",
    "Checkpoint",
    "CheckpointError",
    "Dataset",
    "History",
    "ListDataset",
    "Processes",
    "Row",
    "Schedule",
    "Task",
    "TensorDataset",
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
