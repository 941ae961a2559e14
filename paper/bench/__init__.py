"""Measurement: time, peak memory, provenance, and the benchmarks made of them."""
