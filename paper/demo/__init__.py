"""`eattn demo`: train, time and report on this machine, in five minutes on two cores."""

from paper.demo.main import run

__all__ = ["run"]
