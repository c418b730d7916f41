"""Parity over shards: any m of k+m lost ones come back bit by bit, or it is said that they do not.

May not enter: torch, numpy, and what shards mean. It works on open files (a memfd is one) and on memory, and takes some
pieces of each and no more. Start reading at ``code``; ``field`` is the arithmetic, ``isa_l`` the fast way to do it, and
``wire/code_layout.py`` the record that a rebuild goes by.
"""
