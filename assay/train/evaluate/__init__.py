"""Held-out answers of a policy, and the policy as other tools read it."""
