"""The metrics of classification that a config can name: one file each, and no other files."""
