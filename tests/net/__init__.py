"""Real ZeroMQ over the loopback: who is admitted, what is dropped, what sends heartbeats again."""
