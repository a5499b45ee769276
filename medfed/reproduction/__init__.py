"""Reproduction of the tables and figures of four papers: one YAML file for each paper, and what runs its entries."""
