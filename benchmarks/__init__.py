"""What training costs, and what is learned, beside TRL and transformers: each module here is a command."""
