"""NVIDIA's management library, as an ordinary user may ask it. Start at ``telemetry``."""
