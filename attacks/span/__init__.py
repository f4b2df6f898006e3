"""Whole sentences from the gradients of the first layers, exact or decoded."""
