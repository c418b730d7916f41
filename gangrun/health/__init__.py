"""Whether a node can be trusted with a gang, as an ordinary user sees it.

One file per family of checks. A family reads once (the edge: it may fail, hang or lie) and judges that reading check by
check (pure: reading, earlier reading, policy). ``check`` has the shapes, ``catalogue`` the list, ``rounds`` runs it.
"""
