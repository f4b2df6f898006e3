"""The server: Flower strategies, the eavesdropper around them, and the grids."""
