"""Beside a running script: what it calls, draws and differentiates is recorded in a WatchedRun. Needs torch."""
