"""Benchmarks against another library or a lower limit; the function `measure` of each module returns rows."""

NAMES = ("exchange", "one_round", "jobs", "images", "metrics", "gpu")
