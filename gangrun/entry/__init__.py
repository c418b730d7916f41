"""What ``python -m`` starts: agent, supervisor, job, node, health watch and probe. ``wiring`` composes."""
