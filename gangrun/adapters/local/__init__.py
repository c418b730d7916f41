"""One box: starts wardens as children, finds GPUs, names this host.

Nothing is decided here. ``hosts`` is to this box what srun is to an allocation.
"""
