"""What the statistics that a site would share reveal, measured on its own data."""
