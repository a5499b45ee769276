"""Measurements of speed and memory (`medfed.benchmark`)."""

NAMES = ("exchange", "hd95", "one_round", "jobs", "gpu")  # functions of `medfed.benchmarks.measurements`
