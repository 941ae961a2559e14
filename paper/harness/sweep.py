"""Choice of a learning rate: the best of a few, or of more if the best is an outermost one."""

from collections.abc import Callable, Sequence

from paper.harness.runlog import Row


def sweep(
    lrs: Sequence[float],
    find: Callable[[float], Sequence[Row]],
    score: Callable[[Row], float],
    *,
    ladder: Sequence[float] = (),
    enough: float | None = None,
) -> tuple[list[float], float | None]:
    """Return the learning rates to try, and the best one if all of them have rows.

    `find` returns the row of a learning rate, if there is one, and `score` its score. If the
    highest score belongs to the smallest or the largest of several rates and is not `enough`, the
    next rate of the ladder follows. The lower rate wins a tie.
    """
    lrs = list(lrs)
    while True:
        scores = {lr: score(row) for lr in lrs for row in find(lr)}
        if len(scores) < len(lrs):
            return lrs, None
        best = max(lrs, key=lambda lr: (scores[lr], -lr))
        more = _next(best, lrs, ladder)
        if more is None or scores[best] == enough:
            return lrs, best
        lrs.append(more)


def _next(best: float, lrs: Sequence[float], ladder: Sequence[float]) -> float | None:
    """Return the next learning rate if the best of several is the smallest or the largest."""
    if len(lrs) > 1 and best == max(lrs):
        return min((lr for lr in ladder if lr > best), default=None)
    if len(lrs) > 1 and best == min(lrs):
        return max((lr for lr in ladder if lr < best), default=None)
    return None
