"""Sampling: who draws tokens, with which settings, and where their log-probs are computed."""
