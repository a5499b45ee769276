"""Export of a trained model as a MONAI bundle, and the check that a bundle cannot run arbitrary code."""
