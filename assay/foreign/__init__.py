"""What comes with somebody else's model: its files are checked, and its chat template is rendered within limits."""
