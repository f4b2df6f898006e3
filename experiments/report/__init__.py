"""Findings to a page, tables and figures.

May import: experiments.analysis, bounds, stages, preview and below.
"""
