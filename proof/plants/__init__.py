"""Faults on purpose: runs/ for runs of our trainer, scripts/ (exact edits) for the scripts of the corpus."""
