"""Ring 3: evidence and trees, each a folder that the tool works without.

May import: fedsim.api, and nothing else of ours.
"""
