"""Checks of the replies of one round: each reply on its own, then against the network and the other sites."""
