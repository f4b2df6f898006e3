"""What an experiment would do, before it runs."""
