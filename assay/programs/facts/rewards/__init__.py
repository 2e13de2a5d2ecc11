"""Rewards: which row they belong to, and whether they say anything of it."""
