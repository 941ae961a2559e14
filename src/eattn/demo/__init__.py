"""`eattn demo`: train, time and report on this machine, in five minutes on two cores."""

from eattn.demo.main import run

__all__ = ["run"]
