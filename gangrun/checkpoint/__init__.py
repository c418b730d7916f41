"""Directories, verifying, choosing: everything about checkpoints that needs no torch.

May not enter: torch, numpy, subprocess, clocks, the environment, anything of supervisor, agent or cli. It reads and
renames files, so it is called off the supervisor's loop only. Start reading at ``store``; the choice itself is pure and
lives in ``core.checkpoints.resume``.
"""
