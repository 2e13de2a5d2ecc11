"""Illnesses that only cost time: PERF."""
