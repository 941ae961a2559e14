"""Experiments beyond the paper, one per file."""
