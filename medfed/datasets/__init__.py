"""One file a dataset: how its published layout is read."""
