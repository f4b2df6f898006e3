"""The server: Flower strategies, the eavesdropper that wraps them, and the grids."""
