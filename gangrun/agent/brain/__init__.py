"""Decides what an agent does next. Pure state: no clock, file, socket or process may enter."""
