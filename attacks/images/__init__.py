"""The search of images, and the equations of first layers and convolutions."""
