"""One client's local training: its step, optimiser, schedule, clipping and defense hooks."""
