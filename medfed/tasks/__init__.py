"""What is learned: segmentation (and later classification)."""
