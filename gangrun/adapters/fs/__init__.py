"""The shared file system: run directory, terms, journal, index.

Every operation goes through ``disk.Disk``, so that a test can stall, fill or cut the disk at any of them. Time comes
in as a clock. Start with ``run_dir`` (where everything lies), then ``terms`` (who may act), ``journal`` and ``store``.
"""
