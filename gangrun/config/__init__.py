"""Where settings come from: layers (flag, environment, file, default) down to one RunSpec. It starts no process."""
