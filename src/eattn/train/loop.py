"""The one training loop: batches, steps, evaluations and checkpoints, for whatever a task is.

All that a run does next follows from its config and the number of steps done; what does not
(weights, optimiser, random numbers, rows so far) is what a checkpoint holds. So a run that was
killed goes on as if it had not been: bit for bit on a CPU with the same number of threads.
"""

import math
import time
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from eattn.train import sharding
from eattn.train.checkpoint import Checkpoint
from eattn.train.config import TrainConfig
from eattn.train.dataset import Batch, collate, move
from eattn.train.errors import CheckpointError, TrainingError, advice
from eattn.train.history import History, Row, Standing
from eattn.train.loggers import View, views
from eattn.train.optim import make_optimizer
from eattn.train.precision import autocast, choose_device, choose_dtype, make_scaler
from eattn.train.processes import Processes
from eattn.train.rng import isolated, rng_state, set_rng_state
from eattn.train.schedule import Plan
from eattn.train.task import Task


def train(
    model: nn.Module,
    task: Task,
    config: TrainConfig | None = None,
    *,
    progress: bool | Console = False,
) -> History:
    """Fit the model's trainable parameters to the task, in place; the result is what happened.

    The model goes to the device of the config and stays there, in eval mode, with the weights that
    `keep` names. A loss or gradient that is not finite raises a `TrainingError` before it reaches
    the weights: they are the best ones of an evaluation if there are some, else those before that
    step. The caller's random numbers are left as they were.

    With a checkpoint folder, a run continues where the last one was cut off, provided that model,
    config and number of cases are the same; one that had finished gives its result at once.

    `progress` shows a bar on a terminal, or a line per evaluation elsewhere: on stderr, or on the
    console given. A model from `torch.compile` can be trained, and its checkpoints are those of the
    model inside. CUDA has not been run.

    In several processes (`eattn.train.torchrun`) each takes its share of every batch, so that the
    run is that of one process but for rounding. The first one shows and evaluates; with `fsdp` or
    `sequence_parallel` all evaluate, alike. Each writes its part of a checkpoint, from which any
    other number of processes can go on, in a folder that all of them see. With `fsdp` the model
    itself stays where it was, and gets its weights at the end.

    >>> from eattn.train import Task, TensorCases
    >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
    >>> task = Task(TensorCases(x, 3 * x), lambda model, b: (model(b[0]) - b[1]).square().mean())
    >>> model = nn.Linear(1, 1)
    >>> history = train(model, task, TrainConfig(epochs=50, lr=0.2, schedule="linear"))
    >>> round(model.weight.item(), 1), history.stopped, len(history.rows)
    (3.0, 'epochs', 50)
    """
    config = TrainConfig() if config is None else config
    if not isinstance(config, TrainConfig):
        raise TypeError(f"config must be a TrainConfig, got {type(config).__name__}")
    if config.patience is not None and task.metric is None:
        raise ValueError("patience needs a task with a metric, which says what is better")
    processes = Processes.here()
    processes.agree(_description(model, task, config) | {"checkpoint": _saving(config)})
    with isolated(processes.seed(config.seed)):
        run = _Run(model, task, Plan(len(task.cases), config), processes)
        try:
            run.go(progress)
        finally:
            run.optimizer.zero_grad()  # frees the gradients
            model.eval()
    return run.at.history()


class _Run:
    """A model, an optimiser, and how far they are."""

    def __init__(self, model: nn.Module, task: Task, plan: Plan, processes: Processes) -> None:
        self.given, self.task, self.plan, self.config = model, task, plan, plan.config
        self.processes = processes
        if processes.tokens is not None and task.shard is None:
            raise ValueError("sequence_parallel needs a task with `shard`: a language model has it")
        self.device = choose_device(model, self.config.device)
        self.dtype = choose_dtype(self.config.precision, self.device)
        self.model = processes.shard(model, self.device)
        self.inner: nn.Module = getattr(self.model, "_orig_mod", self.model)  # of torch.compile
        self.optimizer = make_optimizer(self.model, self.config)
        self.scaler = make_scaler(self.device, self.dtype)
        self.at = Standing()
        self.best: dict[str, Any] | None = None
        folder = self.config.checkpoint
        self.checkpoint = None if folder is None else Checkpoint(folder)
        self._restore()
        self.loss = processes.spread(self.model, task.loss)
        self.began = self.saved = time.perf_counter()
        self.before = self.at.seconds

    def go(self, progress: bool | Console) -> None:
        """From where it stands to the end."""
        if self.at.stopped is None:
            with ExitStack() as stack, self._quiet():
                seen = views(progress, self.plan, self.at) if self.processes.first else []
                for view in seen:
                    stack.enter_context(closing(view))
                self._loop(seen)
        self._keep()

    def _loop(self, seen: list[View]) -> None:
        at = self.at
        self.model.train()
        for indices in self.plan.batches(at.step):
            lr = self.plan.lr(at.step)
            loss, norm = self._step(indices, lr)
            for view in seen:
                view.step(at.step, loss=loss, lr=lr, norm=norm)
            evaluated = self.plan.evaluates(at.step)
            if evaluated:
                row = self._evaluate(lr)
                for view in seen:
                    view.row(row)
            at.stopped = at.stopped or self.plan.stops(at.step)
            self._save_if_due(evaluated)
            if at.stopped is not None:
                return

    def _step(self, indices: list[int], lr: float) -> tuple[float, float]:
        """One batch: its loss, and the norm of its gradients before they were clipped."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        mine = self.processes.share(indices)
        # A process without a case takes part all the same: with one of another's, for nothing.
        batch = collate(self.task.cases, mine or indices[:1], indices)
        context: AbstractContextManager[Any] = nullcontext()
        if self.task.shard is not None and self.processes.tokens is not None:
            batch, shard = self.task.shard(batch, self.processes.tokens)
            context = shard.active()
        batch = move(batch, self.device)
        self.optimizer.zero_grad()
        with context:  # around the backward too, which gradient checkpointing computes layers in
            with autocast(self.device, self.dtype):
                loss, weight = self.task.weighed(self.loss(batch), len(mine))
            share, loss, weight = self.processes.weigh(loss, weight if mine else 0.0)
            self.scaler.scale(share).backward()
        self.scaler.unscale_(self.optimizer)
        limit = math.inf if self.config.clip is None else self.config.clip
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        value, size = self._check_finite(loss, sharding.whole(norm), batch, lr)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.processes.count > 1:  # before a checkpoint, each buffer of which is of any process
            sharding.same(self.model, parameters=False)
        self.at.step += 1
        self.at.loss_sum += value * weight
        self.at.weight += weight
        return value, size

    def _check_finite(
        self, loss: Tensor, norm: Tensor, batch: Batch, lr: float
    ) -> tuple[float, float]:
        """Both as floats, the one place in a step that waits for the device."""
        value, size = loss.item(), norm.item()
        # In float16 gradients overflow now and then: the scaler skips the step and scales less.
        overflow = self.scaler.is_enabled() and self.scaler.get_scale() > 1
        if math.isfinite(value) and (math.isfinite(size) or overflow):
            return value, size
        epoch, step = self.plan.epoch(self.at.step) + 1, self.at.step + 1
        what = f"gradient norm is {size}" if math.isfinite(value) else f"loss is {value}"
        tip = advice(self.inner, batch, self.config, autocast=self.dtype is not None)
        self._keep()
        raise TrainingError(
            f"{what} at epoch {epoch}, step {step} (lr {lr:.3g}): {tip}",
            epoch=epoch,
            step=step,
            loss=value,
            norm=size,
        )

    def _evaluate(self, lr: float) -> Row:
        """A row for the steps since the last one; it may be the best, or end the run."""
        at, task = self.at, self.task
        self.model.eval()
        # Its random numbers are its own: judging a model must not change what it learns next.
        with isolated(), torch.no_grad(), autocast(self.device, self.dtype):
            metrics = self.processes.judge(lambda: task.metrics(self.model))
        sharding.rest(self.model)
        self.model.train()
        loss = at.loss_sum / at.weight if at.weight else math.nan
        row = Row(self.plan.epoch(at.step - 1) + 1, at.step, lr, loss, self._seconds(), metrics)
        at.rows.append(row)
        at.loss_sum = at.weight = 0.0
        if task.metric is None:
            return row
        best = None if at.best is None else at.rows[at.best].value(task.metric)
        if task.improves(row.value(task.metric), best):
            at.best, at.waited = len(at.rows) - 1, 0
            if self.config.keep == "best":
                self.best = _copy(self.inner)
        else:
            at.waited += 1
            if at.waited == self.config.patience:
                at.stopped = "patience"
        return row

    def _keep(self) -> None:
        """Give the model its best weights, where they are to be kept and there are some."""
        if self.best is not None:
            self.inner.load_state_dict(self.best)
        if self.processes.fsdp:
            sharding.give_back(self.inner, getattr(self.given, "_orig_mod", self.given))

    def _quiet(self) -> AbstractContextManager[None]:
        return sharding.quiet() if self.processes.count > 1 else nullcontext()

    def _seconds(self) -> float:
        self.at.seconds = self.before + time.perf_counter() - self.began
        return self.at.seconds

    def _save_if_due(self, evaluated: bool) -> None:
        every, seconds = self.config.checkpoint_every, self.config.checkpoint_seconds
        due = (
            self.at.stopped is not None
            or (every is not None and self.at.step % every == 0)
            or (seconds is not None and time.perf_counter() - self.saved >= seconds)
            or (every is None and seconds is None and evaluated)
        )
        if seconds is not None:
            due = self.processes.tell(due)  # no two clocks are the same
        if self.checkpoint is None or not due:
            return
        self._seconds()
        mine, *others = self.processes.gather(rng_state())
        plain: dict[str, Any] = {
            "run": _description(self.inner, self.task, self.config),
            "standing": self.at.plain(),
            "scaler": self.scaler.state_dict(),
            "rng": mine,
            "others": others,  # random numbers of the other processes
        }
        weights, best = self.inner.state_dict(), self.best
        if self.processes.count == 1:
            held = {"model": weights, "best": best, "optimizer": self.optimizer.state_dict()}
            self.checkpoint.save(plain | held)
        else:
            slots = sharding.slots(self.inner, self.optimizer)
            shared = {"model": weights, "optimizer": slots} | ({"best": best} if best else {})
            plain["best"] = best is not None
            plain["slots"] = {
                n: {k: list(x.shape) for k, x in of.items()} for n, of in slots.items()
            }
            self.checkpoint.save_shared(plain, shared, self.processes)
        self.saved = time.perf_counter()

    def _restore(self) -> None:
        """Stand where the last checkpoint does, if there is one, and it is of this run."""
        if self.checkpoint is None:
            return
        # The first process looks for all: no two may stand at different steps.
        found = self.processes.once(self.checkpoint.newest)
        if found is None:
            return
        path = self.checkpoint.folder / found.name  # the folder may have several names
        mine = _description(self.inner, self.task, self.config)
        if path == self.checkpoint.path:
            saved = self.processes.together(self._load)
            self.checkpoint.check(path, saved["run"], mine)
            self._take(saved)
        else:
            saved = self.checkpoint.load_plain(path, self.processes)
            self.checkpoint.check(path, saved["run"], mine)
            self._take_shared(saved, path)
        self.at = Standing.read(saved["standing"])
        self.scaler.load_state_dict(saved["scaler"])
        numbers = [saved["rng"], *saved.get("others", ())]
        if self.processes.rank < len(numbers):  # there may have been fewer
            set_rng_state(numbers[self.processes.rank])

    def _load(self) -> dict[str, Any]:
        """What one process left. Each reads it: it is too much to send."""
        assert self.checkpoint is not None
        saved = self.checkpoint.load()
        if saved is None:
            raise CheckpointError(
                f"{self.checkpoint.path} cannot be seen by process {self.processes.rank}:"
                " all must share the folder"
            )
        return saved

    def _take(self, saved: dict[str, Any]) -> None:
        """The weights and the optimiser of one process that had them whole."""
        mine = self.inner.state_dict()
        self.best = None if saved["best"] is None else sharding.parts(saved["best"], mine)
        self.inner.load_state_dict(sharding.parts(saved["model"], mine))
        sharding.load_whole(self.inner, self.optimizer, saved["optimizer"])

    def _take_shared(self, saved: dict[str, Any], path: Path) -> None:
        """The weights and the optimiser of several processes that each wrote a part."""
        assert self.checkpoint is not None
        room: dict[str, Any] = {
            "model": self.inner.state_dict(),
            "optimizer": sharding.empty_slots(self.inner, self.optimizer, saved["slots"]),
        }
        if saved["best"]:
            room["best"] = _copy(self.inner)
        self.checkpoint.fill_shared(path, room)
        self.best = room.get("best")
        self.inner.load_state_dict(room["model"])
        sharding.fill_slots(self.inner, self.optimizer, room["optimizer"])


def _description(model: nn.Module, task: Task, config: TrainConfig) -> dict[str, dict[str, Any]]:
    """What a run must share with the one it continues, and with that of other processes."""
    inner: nn.Module = getattr(model, "_orig_mod", model)
    trained = {name for name, p in inner.named_parameters() if p.requires_grad}
    weights = {
        name: f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        + (" trained" if name in trained else "")
        for name, x in inner.state_dict().items()
        if isinstance(x, Tensor)
    }
    learnt = {
        "cases": len(task.cases),
        "metric": task.metric,
        "better": task.better,
        "data": task.data,
    }
    return {"config": config.deciding(), "model": weights, "task": learnt}


def _saving(config: TrainConfig) -> dict[str, Any]:
    """When processes save: each would wait for the others. The folder may have several names."""
    return {
        "checkpoint": config.checkpoint is not None,
        "checkpoint_every": config.checkpoint_every,
        "checkpoint_seconds": config.checkpoint_seconds,
    }


def _copy(model: nn.Module) -> dict[str, Any]:
    """The weights as they are now, on the CPU; parts of them where they are."""
    return {
        name: x.detach().clone()
        if hasattr(x, "full_tensor")
        else x.detach().to("cpu", copy=True)
        if isinstance(x, Tensor)
        else x
        for name, x in model.state_dict().items()
    }
