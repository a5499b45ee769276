"""Generators of the phantom images: anatomy, and simulated scanners and cameras."""
