"""The training loop: batches, steps, evaluations and checkpoints for any task.

All that a run does next follows from its config and the number of steps done; everything else
(weights, optimizer, random numbers, rows so far) is in the checkpoint. A killed run therefore
resumes bit for bit on a CPU with the same number of threads.
"""

import math
import time
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from functools import partial
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from eattn.train import processes as parallel
from eattn.train.checkpoint import Checkpoint, CheckpointError
from eattn.train.config import TrainConfig
from eattn.train.history import History, Row, RunState
from eattn.train.identity import check_ranks_agree, check_resumable, describe
from eattn.train.loggers import Logger, make_loggers
from eattn.train.optim import autocast, choose_device, choose_dtype, make_optimizer
from eattn.train.processes import Processes
from eattn.train.rng import isolated, rng_state, set_rng_state
from eattn.train.schedule import Schedule
from eattn.train.task import Batch, SharedDataset, Task, move


class TrainingError(ValueError):
    """A loss or a gradient that is not finite. `epoch` and `step` count from 1."""

    def __init__(self, message: str, *, epoch: int, step: int, loss: float, norm: float) -> None:
        super().__init__(message)
        self.epoch, self.step, self.loss, self.norm = epoch, step, loss, norm

    def __reduce__(self) -> tuple[object, ...]:  # pickling an Exception loses keyword arguments
        return partial(type(self), **vars(self)), self.args


def train(
    model: nn.Module,
    task: Task,
    config: TrainConfig | None = None,
    *,
    progress: bool | Console = False,
) -> History:
    """Fit the model's trainable parameters to the task, in place.

    The model ends on the device of the config, in eval mode, with the weights that `keep` selects.
    With a checkpoint folder, an interrupted run is resumed if model, config and task are the same;
    a finished run returns its result at once. The caller's random numbers are left untouched.

    Inside `eattn.train.torchrun` each process takes its share of every batch, so that the result
    is that of one process up to rounding. Rank 0 logs, evaluates and writes checkpoints (with
    `fsdp` or `sequence_parallel` all ranks evaluate), in a folder that all ranks can read. Any
    other number of processes can resume the run. CUDA has not been run.

    Parameters
    ----------
    model : Module
        May come from `torch.compile`; its checkpoints are those of the module inside.
    task : Task
    config : TrainConfig, optional
    progress : bool or Console, default False
        Show a bar on a terminal and a line per evaluation elsewhere, on stderr or on the console.

    Raises
    ------
    TrainingError
        If a loss or gradient is not finite, before it reaches the weights. The model then has the
        best weights of an evaluation, or else those before that step.

    Examples
    --------
    >>> from eattn.train import Task, TensorDataset
    >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
    >>> task = Task(TensorDataset(x, 3 * x), lambda model, b: (model(b[0]) - b[1]).square().mean())
    >>> model = nn.Linear(1, 1)
    >>> history = train(model, task, TrainConfig(epochs=50, lr=0.2, schedule="linear"))
    >>> round(model.weight.item(), 1), history.stopped, len(history.rows)
    (3.0, 'epochs', 50)
    """
    config = TrainConfig() if config is None else config
    if not isinstance(config, TrainConfig):
        raise TypeError(f"config must be a TrainConfig, got {type(config).__name__}")
    if config.patience is not None and task.metric is None:
        raise ValueError("patience needs a task with a metric")
    processes = Processes.current()
    with isolated(processes.seed(config.seed)):
        run = _Run(model, task, config, processes)
        try:
            run.train(progress)
        finally:
            run.optimizer.zero_grad()  # frees the gradients
            model.eval()
    return run.state.history()


class _Run:
    """A model, its optimizer, and the progress of the run."""

    def __init__(
        self, model: nn.Module, task: Task, config: TrainConfig, processes: Processes
    ) -> None:
        if processes.shard is not None and task.shard is None:
            raise ValueError(
                "sequence_parallel needs a task with `shard`, such as that of a language model"
            )
        self.task, self.config, self.processes = task, config, processes
        self.given: nn.Module = getattr(model, "_orig_mod", model)  # without torch.compile
        self.description = describe(self.given, task, config)
        self._check_ranks()
        self.schedule = Schedule(len(task.dataset), config)
        self.device = choose_device(model, config.device)
        self.dtype = choose_dtype(config.precision, self.device)
        compiled = self.given if processes.fsdp else model
        self.model, self.loss = processes.distribute(compiled, task.loss, self.device)
        self.inner: nn.Module = getattr(self.model, "_orig_mod", self.model)
        self.optimizer = make_optimizer(self.model, config)
        # Scales the loss so that small gradients survive float16.
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)
        self.state = RunState()
        self.best: dict[str, Any] | None = None
        self.checkpoint = None if config.checkpoint is None else Checkpoint(config.checkpoint)
        self._restore()
        self.began = self.saved = time.perf_counter()
        self.before = self.state.seconds

    def _check_ranks(self) -> None:
        """Raise unless all ranks run the same task; else they would wait for each other."""
        c = self.config
        saving = {
            "checkpoint": c.checkpoint is not None,  # the folder may have several names
            "checkpoint_every": c.checkpoint_every,
            "checkpoint_seconds": c.checkpoint_seconds,
        }
        check_ranks_agree(self.processes.gather(self.description | {"checkpoint": saving}))

    def train(self, progress: bool | Console) -> None:
        if self.state.stopped is None:
            with ExitStack() as stack, parallel.ignore_warnings():
                first = self.processes.first
                loggers = make_loggers(progress, self.schedule, self.state) if first else []
                for logger in loggers:
                    stack.enter_context(closing(logger))
                self._loop(loggers)
        self._keep()

    def _loop(self, loggers: list[Logger]) -> None:
        state = self.state
        self.model.train()
        for indices in self.schedule.batches(state.step):
            lr = self.schedule.lr(state.step)
            loss, norm = self._step(indices, lr)
            for logger in loggers:
                logger.step(state.step, loss=loss, lr=lr, norm=norm)
            evaluated = self.schedule.evaluates(state.step)
            if evaluated:
                row = self._evaluate(lr)
                for logger in loggers:
                    logger.row(row)
            state.stopped = state.stopped or self.schedule.stops(state.step)
            self._save_if_due(evaluated)
            if state.stopped is not None:
                return

    def _step(self, indices: list[int], lr: float) -> tuple[float, float]:
        """Train on one batch; return its loss and the gradient norm before clipping."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        share = self.processes.share(indices)
        batch, context = self._batch(share, indices)
        self.optimizer.zero_grad()
        with context:  # around the backward, too: gradient checkpointing runs layers there
            with autocast(self.device, self.dtype):
                loss, weight = self.task.weighted(self.loss(batch), len(share))
            scaled, loss, weight = self.processes.average(loss, weight if share else 0.0)
            self.scaler.scale(scaled).backward()
        self.scaler.unscale_(self.optimizer)
        limit = math.inf if self.config.clip is None else self.config.clip
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        value, size = self._check_finite(loss, parallel.gather_shards(norm), batch, lr)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.processes.count > 1:  # ranks may have updated their buffers differently
            parallel.broadcast_tensors(self.model, parameters=False)
        self.state.step += 1
        self.state.loss_sum += value * weight
        self.state.weight += weight
        return value, size

    def _batch(
        self, share: list[int], indices: list[int]
    ) -> tuple[Batch, AbstractContextManager[object]]:
        """Return this process's share of a batch, and the context of its shard of the tokens."""
        dataset = self.task.dataset
        own = share or indices[:1]  # a process without samples still takes part, with weight 0
        if isinstance(dataset, SharedDataset):
            batch = dataset.collate_share(own, indices)
        else:
            batch = dataset.collate(own)
        context: AbstractContextManager[object] = nullcontext()
        if self.task.shard is not None and self.processes.shard is not None:
            batch, shard = self.task.shard(batch, self.processes.shard)
            context = shard.active()
        return move(batch, self.device), context

    def _check_finite(
        self, loss: Tensor, norm: Tensor, batch: Batch, lr: float
    ) -> tuple[float, float]:
        """Return both as floats; the only place in a step that waits for the device."""
        value, size = loss.item(), norm.item()
        # Gradients in float16 overflow at times: the scaler skips the step and scales less.
        overflow = self.scaler.is_enabled() and self.scaler.get_scale() > 1
        if math.isfinite(value) and (math.isfinite(size) or overflow):
            return value, size
        epoch, step = self.schedule.epoch(self.state.step) + 1, self.state.step + 1
        what = f"gradient norm is {size}" if math.isfinite(value) else f"loss is {value}"
        advice = self._advice(batch)
        self._keep()
        raise TrainingError(
            f"{what} at epoch {epoch}, step {step} (lr {lr:.3g}): {advice}",
            epoch=epoch,
            step=step,
            loss=value,
            norm=size,
        )

    def _advice(self, batch: Batch) -> str:
        """Return what to try, judging by the weights, the batch and the config."""
        for name, p in self.inner.named_parameters():
            if not _finite(p):
                return f"the parameter {name} held NaN or inf before this step"
        options = ["a lower lr", "a warmup"]
        if self.config.clip is None:
            options.append("clip=1.0")
        if self.dtype is not None:
            options.append("precision='float32'")
        tip = f"try {', '.join(options)}"
        if all(map(_finite, pytree.tree_leaves(batch))):
            return f"the batch is finite; {tip}"
        return f"the batch holds NaN or inf: look at the data; if they are masked, {tip}"

    def _evaluate(self, lr: float) -> Row:
        """Add a row for the steps since the last one; it may be the best, or stop the run."""
        state, task = self.state, self.task
        self.model.eval()
        # An evaluation must not change the random numbers of the training.
        with isolated(), torch.no_grad(), autocast(self.device, self.dtype):
            metrics = self.processes.evaluate(lambda: task.metrics(self.model))
        parallel.reshard(self.model)
        self.model.train()
        loss = state.loss_sum / state.weight if state.weight else math.nan
        epoch = self.schedule.epoch(state.step - 1) + 1
        row = Row(epoch, state.step, lr, loss, self._seconds(), metrics)
        state.rows.append(row)
        state.loss_sum = state.weight = 0.0
        if task.metric is None:
            return row
        best = None if state.best is None else state.rows[state.best].value(task.metric)
        if task.improves(row.value(task.metric), best):
            state.best, state.waited = len(state.rows) - 1, 0
            if self.config.keep == "best":
                self.best = _copy(self.inner)
        else:
            state.waited += 1
            if state.waited == self.config.patience:
                state.stopped = "patience"
        return row

    def _keep(self) -> None:
        """Give the model its best weights, if there are any."""
        if self.best is not None:
            self.inner.load_state_dict(self.best)
        if self.processes.fsdp:
            parallel.copy_weights(self.inner, self.given)

    def _seconds(self) -> float:
        self.state.seconds = self.before + time.perf_counter() - self.began
        return self.state.seconds

    def _save_if_due(self, evaluated: bool) -> None:
        if self.checkpoint is None:
            return
        every, seconds = self.config.checkpoint_every, self.config.checkpoint_seconds
        due = (
            self.state.stopped is not None
            or (every is not None and self.state.step % every == 0)
            or (seconds is not None and time.perf_counter() - self.saved >= seconds)
            or (every is None and seconds is None and evaluated)
        )
        if seconds is not None:
            due = self.processes.broadcast(due)  # clocks differ between ranks
        if not due:
            return
        self._seconds()
        tensors = {
            "model": dict(self.inner.state_dict()),
            "best": self.best,
            "optimizer": self.optimizer.state_dict(),
        }
        state = {
            "run": self.description,
            "state": self.state.to_dict(),
            "scaler": self.scaler.state_dict(),
            "rng": self.processes.gather(rng_state()),
            **parallel.gather_shards(tensors, keep=self.processes.first),
        }
        self.processes.on_first_rank(partial(self.checkpoint.save, state))
        self.saved = time.perf_counter()

    def _restore(self) -> None:
        """Continue from the checkpoint, if there is one, and it belongs to this run."""
        if self.checkpoint is None:
            return
        saved = self.processes.on_every_rank(self.checkpoint.load)
        steps = self.processes.gather(None if saved is None else saved["state"]["step"])
        if len(set(steps)) > 1:
            raise CheckpointError(
                f"all processes must see the same {self.checkpoint.path},"
                f" got steps {', '.join(map(str, steps))}"
            )
        if saved is None:
            return
        check_resumable(self.checkpoint.path, saved["run"], self.description)
        best = saved["best"]
        self.best = None if best is None else parallel.shard_weights(best, self.inner)
        self.inner.load_state_dict(parallel.shard_weights(saved["model"], self.inner))
        parallel.load_optimizer(self.optimizer, saved["optimizer"])
        self.state = RunState.from_dict(saved["state"])
        self.scaler.load_state_dict(saved["scaler"])
        if self.processes.rank < len(saved["rng"]):  # there may have been fewer processes
            set_rng_state(saved["rng"][self.processes.rank])


def _copy(model: nn.Module) -> dict[str, Any]:
    """Copy the weights to the CPU; shards stay on their device."""

    def copy(x: Tensor) -> Tensor:
        return x.clone() if hasattr(x, "full_tensor") else x.to("cpu", copy=True)

    found: dict[str, Any] = pytree.tree_map_only(Tensor, copy, dict(model.state_dict()))
    return found


def _finite(x: object) -> bool:
    """Return whether a tensor, or this rank's shard of it, is finite; other values are."""
    local = x.to_local() if hasattr(x, "to_local") else x
    return not isinstance(local, Tensor) or bool(torch.isfinite(local).all())
