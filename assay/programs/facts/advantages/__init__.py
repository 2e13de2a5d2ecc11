"""Advantages: how rewards become weights of the policy gradient; groups, baselines, shapes."""
