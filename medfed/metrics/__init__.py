"""Scores per patient and structure, with a stated policy for empty masks."""
