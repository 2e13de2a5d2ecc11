"""Optimizers: what they hold and change, how often, in which mode and precision."""
