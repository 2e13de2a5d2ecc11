"""Policies: models that are trained and sampled from."""
