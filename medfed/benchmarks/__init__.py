"""What `python -m medfed.benchmark` times."""
