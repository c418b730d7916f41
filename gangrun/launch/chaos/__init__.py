"""Drills: real failures on purpose, and whether the run notices, blames and recovers as an SLA demands."""
