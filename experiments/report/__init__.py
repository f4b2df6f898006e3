"""Findings to a page, tables and figures."""
