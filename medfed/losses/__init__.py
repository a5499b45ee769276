"""Loss functions and regularisers, useful without any federation."""
