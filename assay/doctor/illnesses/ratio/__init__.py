"""Illnesses of the ratio and its clip: RAT, CLIP."""
