"""Networks: MONAI's, with the names of the places that methods tap."""
