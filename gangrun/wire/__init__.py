"""Shapes that outlive a process: versioned, pure bytes <-> values.

No file, socket or clock may enter. ``record`` is the journal, ``messages`` what agents and supervisor say to each
other, ``spec`` what the user submitted, ``progress`` the slot through which a training script reports.
"""
