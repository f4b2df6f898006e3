"""Rows to findings: what leaked, at what cost, how sure."""
