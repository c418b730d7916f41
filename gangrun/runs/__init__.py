"""Reads a run from its directory and, where a command wants it, from Slurm. Nothing here writes."""
