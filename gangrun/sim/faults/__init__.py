"""What can go wrong in a simulated world, and how each fault is done to it."""
