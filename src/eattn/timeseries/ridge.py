"""Ridge regression of class labels in closed form, calibrated by leave-one-out predictions."""

import torch
import torch.nn.functional as F
from torch import Tensor

PENALTIES = tuple(10 ** (i / 2) for i in range(-14, 5))
SCALES = tuple(10 ** (i / 10) for i in range(-10, 21))  # of the predictions, to be logits
SMALLEST = 1e-6  # standard deviation of a feature that is used


def fit_ridge(features: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a linear map from features to logits.

    The regression predicts 1 for the class of a sample and -1 for the others. The penalty has the
    smallest leave-one-out error. The predictions are then scaled to logits, by the factor with the
    smallest cross-entropy of the leave-one-out predictions. Label smoothing of 1 / n keeps the
    factor finite if all of them are right.

    Parameters
    ----------
    features : Tensor, shape (n, features)
        Features of the training samples.
    y : int64 Tensor, shape (n,)
        Class of each sample; every class must occur.
    weight : Tensor, shape (n,)
        Weight of each sample, >= 0 and not all 0.

    Returns
    -------
    weight : Tensor, shape (classes, features)
    bias : Tensor, shape (classes,)
    """
    share = (weight / weight.sum()).double().unsqueeze(1)  # [n, 1]
    x = features.to(torch.float64, copy=True)
    mean = (share * x).sum(0)
    x -= mean
    std = (share * x.square()).sum(0).sqrt()
    used = std > SMALLEST
    factor = torch.where(used, 1 / (std.clamp(min=SMALLEST) * used.sum().clamp(min=1).sqrt()), 0.0)
    count = int((share > 0).sum())
    root = (share * count).sqrt()  # scaled by it, the weighted squares are plain squares
    x *= factor * root
    target = 2 * F.one_hot(y).double() - 1
    center = (share * target).sum(0)
    residual = (target - center) * root

    wide = x.shape[1] > len(x)
    values, vectors = torch.linalg.eigh(x @ x.T if wide else x.T @ x)
    values = values.clamp(min=0)
    # Left singular vectors of x, and the products of x with the right ones.
    left = vectors if wide else x @ vectors / values.clamp(min=1e-12).sqrt()
    coordinates = left.T @ residual
    best: tuple[float, float, Tensor] | None = None
    for penalty in PENALTIES:
        shrink = (values / (values + penalty)).unsqueeze(1)
        error = residual - left @ (shrink * coordinates)
        leverage = left.square() @ shrink + share  # the last term is that of the intercept
        error = error / (1 - leverage).clamp(min=1e-9)
        loss = error.square().mean().item()
        if best is None or loss < best[0]:
            best = loss, penalty, target - error / root.clamp(min=1e-9)
    assert best is not None
    _, penalty, left_out = best

    scale = _calibrate(left_out, y, share.squeeze(1))
    inner = coordinates * (values.sqrt() / (values + penalty)).unsqueeze(1)
    right = x.T @ vectors / values.clamp(min=1e-12).sqrt() if wide else vectors
    linear = scale * (right @ inner).T * factor
    return linear, scale * center - linear @ mean


def _calibrate(predictions: Tensor, y: Tensor, share: Tensor) -> float:
    """Return the factor of predictions [n, classes] with the smallest cross-entropy."""
    smoothing = 1 / int((share > 0).sum())

    def loss(scale: float) -> float:
        each = F.cross_entropy(scale * predictions, y, reduction="none", label_smoothing=smoothing)
        return float((share * each).sum())

    return min(SCALES, key=loss)
