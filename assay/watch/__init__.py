"""`assay watch script.py`: a script runs under observation; what was seen is a Trace, and the doctor reads it."""
