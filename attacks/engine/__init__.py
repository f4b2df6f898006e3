"""Searches that attacks share, whatever they look for."""
