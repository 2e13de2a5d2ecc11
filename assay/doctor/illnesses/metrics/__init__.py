"""Illnesses that curves show: MET."""
