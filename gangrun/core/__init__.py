"""What decides: values in, values out.

No clock, file, process, socket, thread, log or random number may enter; import-linter keeps it so.
Start with ``model``, then ``events`` and ``actions``, then ``machine/lifecycle`` where they meet.
"""
