"""Which checkpoint to resume from, which may go, how often to save, and what nodes hold in memory."""
