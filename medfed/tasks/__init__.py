"""Learning tasks, segmentation and classification: samples, loss, metrics, tables, figures and MONAI bundle of each."""
