"""A folder of evidence about a run for a privacy assessment, without private rows."""
