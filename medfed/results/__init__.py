"""Scores as one tidy table (pandas), from the file of a run to the statistics of a comparison."""
