"""``python -m gangrun``: the same as the ``gangrun`` command, for where it is not on the path."""

from __future__ import annotations

from gangrun.cli.main import main

if __name__ == "__main__":
    main()
