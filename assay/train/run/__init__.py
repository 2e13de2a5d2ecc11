"""A run as a whole: its start, its checkpoints, its end."""
