"""What a reply shows of the defense that it carries, held against what is claimed of it.

May import: experiments.captures and below, attacks, clients, fedsim; ``command`` what
the other commands share.
"""
