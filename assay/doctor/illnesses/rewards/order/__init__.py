"""Rewards whose order of answers is wrong: the right answer must get more than every other text."""
