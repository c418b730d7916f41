"""Faults that tests put under real processes of gangrun: a disk that fails, a clock that jumps, a host that is sick."""
