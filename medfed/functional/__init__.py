"""Floor 0: pure functions on tensors and arrays; no devices, no seeds, no classes of ours."""
