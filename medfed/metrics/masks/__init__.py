"""The metrics of segmentation that a config can name: one file each, and no other files."""
