"""What is learned: segmentation and classification, each with its metrics, tables, figures and bundle."""
