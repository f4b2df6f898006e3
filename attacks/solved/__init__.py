"""Attacks that solve for the inputs exactly."""
