"""A look at an experiment before it runs."""
