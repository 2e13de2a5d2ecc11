"""Masks of tokens: which tokens count, where rows end, what is padding."""
