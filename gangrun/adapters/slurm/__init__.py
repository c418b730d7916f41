"""Slurm, through its own tools and as an ordinary user.

``commands`` starts the tools, ``scheduler`` reads and asks, ``why`` tells why SIGTERM came, ``jobs`` submits the next
job and watches this one. Nothing needs sacct: many clusters have no accounting.
"""
