"""Readings of an update that several attacks share."""
