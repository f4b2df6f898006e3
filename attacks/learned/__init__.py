"""Learning To Invert (Wu 2022)."""
