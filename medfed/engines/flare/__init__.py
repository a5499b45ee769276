"""NVIDIA FLARE: its two halves, the job that joins them, and the line to the round loop."""
