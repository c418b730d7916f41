"""The one process that decides: wait, step, record, perform.

Only core, wire and ports may be imported; no clock, thread, file or socket may enter. Start with ``loop``; before it
comes ``takeover``, beside it ``heartbeats`` (who lives) and ``gang_commands`` (who did what it was told).
"""
