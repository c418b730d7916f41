"""The laws of terms, leases and liveness, as pure functions."""
