"""Values of a program and what was done to them, read from its text (assay.source) or from its run (assay.watch)."""
