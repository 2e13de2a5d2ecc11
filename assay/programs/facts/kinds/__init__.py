"""What a value is: logits, log-probs, a ratio, a mask."""
