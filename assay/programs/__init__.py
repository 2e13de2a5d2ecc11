"""Other people's programs as one graph of values: read from the text (read/), or recorded while they run (run/)."""
