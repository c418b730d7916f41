"""Checkpoints in the memory of nodes: the line to the keeper, recovery to disk, and rebuilding from parity."""
