"""Published result tables of the papers, and their section in a comparison."""
