"""Measure, keep rows, judge targets, and show the results."""
