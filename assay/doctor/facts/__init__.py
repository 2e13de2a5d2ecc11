"""What several checks ask of a batch, of the curves of a run, or of the calls of a reward."""
