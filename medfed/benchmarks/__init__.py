"""The measurements of `python -m medfed.benchmark`."""
