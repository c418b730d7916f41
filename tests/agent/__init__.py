"""The agent: its brain with a clock in the hand, its loop with real sockets and processes."""
