"""One verb of the step, one file."""
