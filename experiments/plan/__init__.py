"""Experiment files: parsed, validated and expanded into cells and run folders.

May import: experiments.console and origin, attacks, fedsim.
"""
