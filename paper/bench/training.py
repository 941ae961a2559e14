"""A training step of all of BERT-base, with any mixer in it.

Forward, and backward of a loss into weights and input, non-causal as BERT trains; with dropout, if
asked for, of what joins the residual (not of attention weights: not all mixers have them).
Gradients are held from the start and cleared in place, so that with the weights they are the model,
and what a step adds is activations and what is made on the way. The optimizer is left out: it costs
the same whatever the mixer.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paper.bench import peak
from paper.bench.bert import DROPOUT, make_model
from paper.bench.candidates import Work, inputs

WARM = 64  # tokens of the step before: thread pools and libraries are not part of the cost


def step(
    name: str,
    *,
    batch: int,
    length: int,
    dim: int,
    depth: int,
    dropout: float = DROPOUT,
    device: str = "cpu",
) -> Work:
    """A training step on random sequences [batch, length, dim], warmed up on a short one."""
    model = make_model(name, dim=dim, depth=depth, max_len=length, dropout=dropout)
    model.to(device).train()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    _train(model, *(x.to(device) for x in inputs((1, min(length, WARM), dim), 2)))
    x, target = (x.to(device) for x in inputs((batch, length, dim), 2))
    return lambda: _train(model, x, target)


def measured_step(**options: object) -> Work:
    """As `step`, for a process of its own whose memory is watched."""
    peak.free_at_once()
    return step(**options)  # type: ignore[arg-type]


def _train(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    model.zero_grad(set_to_none=False)
    x = x.detach().requires_grad_()  # as above an embedding
    loss = F.mse_loss(model(x), target)
    loss.backward()
    if x.is_cuda:
        torch.cuda.synchronize()
    return loss.detach()
