"""Engines: prompts -> rollouts."""
