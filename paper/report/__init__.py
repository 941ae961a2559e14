"""Measured rows (JSON lines) to tables. A leaf: it reads files and imports no torch."""
