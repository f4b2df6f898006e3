"""Upper limits on what any attack on a run can achieve.

May import: experiments.stages and below.
"""
