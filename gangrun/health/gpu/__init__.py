"""Checks of GPUs: presence, memory, how they run, NVLink, XID, DCGM."""
