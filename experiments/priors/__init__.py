"""Small language models trained on auxiliary rows, for attacks that judge orders of words.

May import: experiments.stages and below.
"""
