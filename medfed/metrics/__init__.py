"""Metrics, one file each, and what is computed from them over patients, sites and methods."""
