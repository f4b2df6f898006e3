"""Sentences whose every token lies in the span of an update."""
