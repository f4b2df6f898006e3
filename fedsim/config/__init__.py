"""The tables of an experiment file, and what a cell's task, rows and threat model follow from."""
