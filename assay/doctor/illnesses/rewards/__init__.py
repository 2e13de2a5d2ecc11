"""Illnesses of rewards: REW."""
