"""One HTML page from measured rows, which needs nothing beside it: no network, no other file."""

from paper.report.html.page import write

__all__ = ["write"]
