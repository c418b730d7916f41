"""NVIDIA's management library, as an ordinary user may ask it (room: adapters). Start at ``telemetry``."""
