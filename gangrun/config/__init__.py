"""Where settings come from: layers (flag, environment, file, default) down to one RunSpec. No process is started here."""
