"""What several illnesses read in the graph of a script."""
