"""Tables of scores and costs: of one run, and of a comparison of methods."""
