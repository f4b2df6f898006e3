"""Experiment files: parsed, validated and expanded into cells and run folders."""
