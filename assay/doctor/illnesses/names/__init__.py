"""Illnesses of the text itself: NAME."""
