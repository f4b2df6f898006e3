"""The server: Flower strategies, the eavesdropper around them, and the grids.

May import: fedsim, never fedsim.store.truth.
"""
