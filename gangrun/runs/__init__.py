"""Reads a run from its directory and, where a command wants it, from the scheduler. Nothing here writes."""
