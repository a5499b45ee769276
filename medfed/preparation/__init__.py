"""Write the original collections, as their owners distribute them, in the layout that the datasets read."""
