"""Figures of the paper, one experiment per file."""
