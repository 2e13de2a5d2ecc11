"""Illnesses of advantages: ADV."""
