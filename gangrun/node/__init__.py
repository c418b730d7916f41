"""Started by path, standard library only: warden, lease, memory keeper, a rank's first code. Imports nothing else."""
