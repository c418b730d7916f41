"""Tests that put devices and the network to work, and their programs, which are run by path."""
