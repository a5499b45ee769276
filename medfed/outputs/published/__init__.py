"""Published result tables of the papers, and their numbers beside those of a comparison."""
