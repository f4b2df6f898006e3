"""The stages of an experiment and the command line.

May import: attacks, clients, server and fedsim; nobody imports experiments.
"""
