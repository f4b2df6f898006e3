"""A run while it goes on, as a page on this machine's loopback address."""
