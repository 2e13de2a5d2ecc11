"""Python text --> Program: every value it makes and what is done to it. Nothing is ever executed or imported."""
