"""Real ZeroMQ over the loopback: who is admitted, what is dropped, what is heard again."""
