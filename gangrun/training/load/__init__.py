"""Reads checkpoints: which one to resume from, verified by all ranks together, and loaded into tensors."""
