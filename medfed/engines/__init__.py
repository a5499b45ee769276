"""How messages travel between coordinator and sites."""
