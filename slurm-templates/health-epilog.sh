#!/bin/bash
# Slurm's Epilog: slurmd runs it as root when a job has left this node. An exit code other than 0 drains the node. What a job
# may leave behind (memory of a GPU, full /dev/shm) is seen here, before the next one suffers from it.
#
#   Epilog=/etc/slurm/health-epilog.sh
gangrun=${GANGRUN:-/opt/gangrun/bin/gangrun}

reason=$(cd /tmp && timeout --kill-after=5 45 "$gangrun" health --reason </dev/null 2>/dev/null)
if [ $? -eq 1 ] && [ -n "$reason" ]; then
  scontrol update NodeName="${SLURMD_NODENAME:-$(hostname -s)}" State=DRAIN Reason="gangrun: $reason"
  exit 1
fi
exit 0
