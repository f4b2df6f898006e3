"""Attacks that infer which of given rows were used, instead of the rows."""
