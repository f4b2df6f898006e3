"""The weakest defense that holds: a search over strengths with tests that may stop at any time.

May import: experiments.report and below.
"""
