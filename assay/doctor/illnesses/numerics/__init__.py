"""Illnesses of arithmetic and of the model's mode: NUM, MODE."""
