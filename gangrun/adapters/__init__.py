"""Everything that touches the world; the folders here never import each other.

Only ``cli.wiring`` (and the processes' own mains) may know more than one of them. What they answer to is ``ports``.
"""
