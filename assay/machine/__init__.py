"""What the machine gives: files that survive a crash, the terminal, processes, memory, devices."""
