"""Checks of the host around the GPUs: memory, clock, limits, bus, mounts, storage, and a site's own commands."""
