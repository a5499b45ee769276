"""Messages, sites and the round loop; knows no paper and no transport."""
