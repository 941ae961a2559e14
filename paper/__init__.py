"""The study that argues for eattn: tables, figures, benchmarks and their results."""
