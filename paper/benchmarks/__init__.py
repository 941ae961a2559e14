"""Benchmarks of the library, one per file."""
