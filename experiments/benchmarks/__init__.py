"""What ``fedsim bench`` measures, and its yardsticks."""
