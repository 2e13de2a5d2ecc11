"""`python -m benchmarks.model`: rollout, update, whole step and memory of a real model."""
