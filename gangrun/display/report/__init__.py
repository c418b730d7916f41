"""``gangrun report --html``: one file that needs no network, to look at, to print and to keep."""
