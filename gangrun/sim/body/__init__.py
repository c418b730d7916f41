"""Who lives in a simulated world: nodes, agents, supervisors, the scheduler, ranks and their checkpoints."""
