"""Check methods that are written outside medfed: toy federations, and the rules that every method must keep."""
