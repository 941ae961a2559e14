"""Targets: numbers that the rows of an experiment must reach."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from paper.harness.runlog import Row, find_row

Rows = Sequence[Row]
EQUAL = 0.02  # costs within this share of each other are equal


@dataclass(frozen=True)
class Target:
    """A bound on a number that is computed from rows: either `at_least` or `at_most`."""

    name: str
    value: Callable[[Rows], float]  # raises LookupError when the rows do not contain the number
    at_least: float | None = None
    at_most: float | None = None
    stretch: float | None = None  # a harder bound in the same direction
    unit: str = ""  # written after the number
    quick: bool = False  # also evaluated after a quick run, whose plan measures the same shape
    highlight: str = ""  # words for the top of the report page, read after the number

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"{self.name}: give either at_least or at_most")

    def reached(self, value: float, bound: float) -> bool:
        return value <= bound if self.at_least is None else value >= bound

    @property
    def required(self) -> float:
        bound = self.at_most if self.at_least is None else self.at_least
        assert bound is not None
        return bound

    def words(self, bound: float) -> str:
        """Return a bound with its sign."""
        return f"{'≤' if self.at_least is None else '≥'} {bound:g}"


@dataclass(frozen=True)
class Verdict:
    """A target with the number that was measured."""

    target: Target
    value: float

    @property
    def met(self) -> bool:
        return self.target.reached(self.value, self.target.required)

    @property
    def words(self) -> str:
        """`stretch met`, `met` or `missed`."""
        stretch = self.target.stretch
        if stretch is not None and self.target.reached(self.value, stretch):
            return "stretch met"
        return "met" if self.met else "missed"

    @property
    def text(self) -> str:
        """The number with its unit."""
        return f"{self.value:.3g}{self.target.unit}"

    @property
    def bound(self) -> str:
        """The required bound, and the stretch bound if there is one."""
        target = self.target
        stretch = "" if target.stretch is None else f" (stretch {target.words(target.stretch)})"
        return target.words(target.required) + stretch


def judge(targets: Iterable[Target], rows: Rows, *, quick: bool = False) -> list[Verdict]:
    """Judge all targets that the rows can answer; after a quick run only those made for it."""
    verdicts = []
    for target in targets:
        if quick and not target.quick:
            continue
        try:
            verdicts.append(Verdict(target, target.value(rows)))
        except LookupError:  # the plan left it out, or the machine has too few cores
            continue
    return verdicts


def ratio(above: Row, below: Row, field: str = "p50") -> Callable[[Rows], float]:
    """Return a function that divides a field of one row by the same field of another.

    `above` and `below` are fields that identify the two rows.
    """
    return lambda rows: float(find_row(rows, **above)[field] / find_row(rows, **below)[field])


def better(cost: float, ours: float) -> bool:
    """Return whether a cost is below ours by more than measurements vary."""
    return cost < ours / (1 + EQUAL)
