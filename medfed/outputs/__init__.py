"""Files that a run writes: tables, figures, the report, the MONAI bundle, and the run folder itself."""
