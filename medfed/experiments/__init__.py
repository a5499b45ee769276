"""Experiments: from a config to a finished run, and comparisons of methods."""
