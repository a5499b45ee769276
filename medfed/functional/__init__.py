"""Pure functions on tensors and arrays that know nothing of sites, configs or devices, so any project may use them."""
