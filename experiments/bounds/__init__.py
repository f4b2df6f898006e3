"""Upper limits on what any attack on a run can achieve."""
