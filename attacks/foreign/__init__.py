"""Replies of other applications, which state few facts: each is read in every possible way."""
