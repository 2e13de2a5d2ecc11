"""`assay watch script.py`: a script runs under observation; what was seen is a WatchedRun, and the doctor reads it."""
