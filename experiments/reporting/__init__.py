"""What a run found, and the page, tables and figures that tell it."""
