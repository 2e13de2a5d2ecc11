"""Illnesses of the loss: LOSS."""
