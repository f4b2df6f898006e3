"""Learned inversion: simulated updates, their features and the networks that invert them."""
