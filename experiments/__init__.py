"""The stages of an experiment and the command line."""
