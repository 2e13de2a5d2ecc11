"""Rehearsals: a training script runs for a few steps without its model, its data, its engine or a GPU."""
