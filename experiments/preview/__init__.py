"""A look at an experiment before it runs.

May import: experiments.wording, experiments.plan and below.
"""
