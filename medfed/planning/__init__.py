"""Plan a run for a user's own images: a fingerprint of the training sites, rules, and a config with a reason each."""
