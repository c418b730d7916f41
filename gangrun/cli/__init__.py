"""The commands: one file each, and ``main`` that finds them.

Nothing heavy is imported at the top of any of these files: ``gangrun status`` pays for click and the standard library.
The work is done in ``launch``, ``runs`` and ``display``; ``config`` knows what a setting means.
"""
