"""Started by path, standard library only: warden, lease, memory keeper, a rank's first code. It imports nothing else."""
