"""Puts a save into the memory of the nodes: copies to peers and parity."""
