"""Synthetic collections: drawn anatomy, simulated scanners, published layouts."""
