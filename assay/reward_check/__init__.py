"""`assay reward-check`: a reward is tried before any GPU hour is spent on it, and the doctor judges the trial."""
