"""Scores of a MONAI bundle on labelled images, without training and without running code of the bundle."""
