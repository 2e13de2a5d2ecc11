"""A process --> values with their numbers: what a script did, recorded while it ran."""
