"""One illness, one file. The file is found by being here; nothing else lists it."""
