"""Callbacks that come with medfed: one file for each name in `tracking`."""
