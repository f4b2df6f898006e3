"""What proves or supports a guessed batch: its gradient, or what it leaves of the update."""
