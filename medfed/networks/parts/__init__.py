"""Layers, codecs and what networks share; no config names these files."""
