"""Names and phrases of the page and the terminal.

May import: experiments.plan and below.
"""
