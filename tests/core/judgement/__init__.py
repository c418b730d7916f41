"""Failures that people reported in public, replayed against the core: what it concludes, and what it does."""
