"""How far any attack on a run can get."""
