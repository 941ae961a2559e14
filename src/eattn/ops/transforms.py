"""Support for the transforms of torch.func: grad, vjp, jacrev and vmap.

An op of torch.library cannot be transformed. `transform` calls an operator through an
autograd.Function whose rule for vmap folds the mapped axis V into the batch: [V, B, ...] becomes
[V * B, ...]. The backward computes the operator again, so that these rules need not know what an
operator saves.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PACKED = (0, 1, 2, 3, 8)  # q, k, v, key_mask and log_decay of `Inputs`


@dataclass(frozen=True)
class Operator:
    """Function of tensors (or None) whose axis 0 is the batch; it supports a normal backward."""

    name: str
    function: Callable[..., tuple[Tensor, ...]]
    differentiable: int = 1  # outputs after these have no gradient
    # Whether the inputs `PACKED` and output 0 are sequences packed along axis 1, with offsets in
    # input 4.
    packed: bool = False


def transforming() -> bool:
    """Return whether a transform is active; False while compiling."""
    return (
        not torch.compiler.is_compiling()  # first, because the stack cannot be compiled
        and torch._C._functorch.peek_interpreter_stack() is not None
    )


def transform(operator: Operator, *inputs: Tensor | None) -> tuple[Tensor, ...]:
    """Call the operator so that active transforms apply to it."""
    outputs: tuple[Tensor, ...] = _Forward.apply(operator, *inputs)
    return outputs


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(operator: Operator, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        return operator.function(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.operator, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*output[ctx.operator.differentiable :])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        count = ctx.operator.differentiable
        found = iter(_Backward.apply(ctx.operator, *grads[:count], *ctx.saved_tensors))
        return None, *(next(found) if _is_float(x) else None for x in ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], operator: Operator, *inputs: Any) -> Any:
        fold = _Fold(info.batch_size, operator)
        outputs = _Forward.apply(operator, *fold.inputs(inputs, in_dims[1:]))
        unfolded = [fold.back(y, operator.packed and i == 0) for i, y in enumerate(outputs)]
        return tuple(unfolded), (0,) * len(unfolded)


class _Backward(torch.autograd.Function):
    """Gradients of the floating-point inputs of `_Forward`."""

    @staticmethod
    def forward(operator: Operator, *tensors: Any) -> tuple[Tensor, ...]:
        count = operator.differentiable
        inputs = [None if x is None else x.detach() for x in tensors[count:]]
        leaves: list[Any] = [x for x in inputs if _is_float(x)]
        for x in leaves:
            x.requires_grad_()
        with torch.enable_grad():
            outputs = operator.function(*inputs)
        found = torch.autograd.grad(outputs[:count], leaves, tensors[:count], allow_unused=True)
        return tuple(
            torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.name = inputs[0].name

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> None:
        raise NotImplementedError(f"{ctx.name} does not support a second derivative")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], operator: Operator, *tensors: Any) -> Any:
        fold, count, dims = _Fold(info.batch_size, operator), operator.differentiable, in_dims[1:]
        grads = [
            fold(g, dim, operator.packed and i == 0)
            for i, (g, dim) in enumerate(zip(tensors[:count], dims[:count], strict=True))
        ]
        inputs = fold.inputs(tensors[count:], dims[count:])
        found = _Backward.apply(operator, *grads, *inputs)
        packed = [operator.packed and i in PACKED for i, x in enumerate(inputs) if _is_float(x)]
        return tuple(map(fold.back, found, packed)), (0,) * len(found)


class _Fold:
    """Fold the axis of a vmap into the batch, or into axis 1 of packed sequences, and back."""

    def __init__(self, size: int, operator: Operator) -> None:
        self.size, self.operator = size, operator

    def __call__(self, x: Tensor, dim: int | None, packed: bool) -> Tensor:
        x = self._front(x, dim).flatten(0, 1)
        return x.flatten(0, 1).unsqueeze(0) if packed else x

    def back(self, x: Tensor, packed: bool) -> Tensor:
        x = x.transpose(0, 1) if packed else x
        x = x.unflatten(0, (self.size, x.shape[0] // self.size))
        return x.transpose(1, 2) if packed else x

    def inputs(self, inputs: tuple[Any, ...], dims: tuple[Any, ...]) -> list[Tensor | None]:
        packed = self.operator.packed
        folded: list[Tensor | None] = [
            None if x is None else self(x, dim, packed and i in PACKED)
            for i, (x, dim) in enumerate(zip(inputs, dims, strict=True))
        ]
        if packed:
            offsets, first = self._front(inputs[4], dims[4]), folded[0]
            assert first is not None
            length = first.shape[1] // self.size
            starts = torch.arange(self.size, device=offsets.device, dtype=offsets.dtype) * length
            ends = (offsets[:, 1:] + starts.unsqueeze(1)).flatten()
            folded[4] = torch.cat([ends.new_zeros(1), ends])
        return folded

    def _front(self, x: Tensor, dim: int | None) -> Tensor:
        return x.expand(self.size, *x.shape) if dim is None else x.movedim(dim, 0)


def _is_float(x: Tensor | None) -> bool:
    return x is not None and x.is_floating_point()
