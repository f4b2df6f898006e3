"""Files of a run: written whole, opened as plain files, and named by their hash."""
