"""The datasets that a config can name: one file each, and no other files (`medfed.core.registry`)."""
