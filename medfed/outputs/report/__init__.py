"""The page that shows finished runs and comparisons: one HTML file that needs nothing else."""
