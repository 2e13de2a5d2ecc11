"""Illnesses of sampling: SAMP, SYNC."""
