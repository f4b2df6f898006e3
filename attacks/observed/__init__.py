"""What an update says before any attack is made."""
