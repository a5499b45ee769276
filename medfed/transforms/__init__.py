"""MONAI transforms, useful without any federation."""
