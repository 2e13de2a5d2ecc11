"""Illnesses of the KL and its reference: KL."""
