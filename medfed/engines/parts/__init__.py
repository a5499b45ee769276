"""What engines share; no config names these files."""
