"""Slurm, through its own tools and as an ordinary user.

``commands`` starts the tools, ``scheduler`` reads and asks, ``watch`` watches this job and tells why SIGTERM
came, ``jobs`` submits the next job, ``step`` starts commands on nodes. Nothing needs sacct: many clusters have no
accounting.
"""
