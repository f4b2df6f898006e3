"""Scheduling of the attack stage: jobs, their ledger, and the workers that run them."""
