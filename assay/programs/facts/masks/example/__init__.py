"""A worked example: what a mask of a script holds for four rows of tokens."""
