"""Rows to findings: what leaked, at what cost, how sure.

May import: experiments.stages and below; nothing of report or decision.
"""
