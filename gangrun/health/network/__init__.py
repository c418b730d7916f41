"""Checks of InfiniBand and RoCE ports, and the verdict on pairs of nodes."""
