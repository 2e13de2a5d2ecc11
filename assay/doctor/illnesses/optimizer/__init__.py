"""Illnesses of the optimizer's step and its settings: OPT, HYP."""
