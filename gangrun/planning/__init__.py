"""Arithmetic of failures: how often they come, what they cost, how often to save. Pure, like the core.

``plan``, the ledger of a run and the Checkpointer use the same functions, so they cannot disagree.
"""
