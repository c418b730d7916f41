"""Performs on one node: starts, watches and stops ranks, and keeps what they print."""
