"""The doctor: evidence --> findings, by a catalogue in which one illness is one file."""
