"""Values to lines: text, times, tables, pages and the live screen. Nothing is decided here."""
