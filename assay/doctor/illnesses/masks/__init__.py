"""Illnesses of masks: MASK."""
