#!/bin/bash
# Slurm's Prolog: slurmd runs it as root before the first task of a job on this node. An exit code other than 0 drains the
# node and puts the job back into the queue, so only a check that failed may make it one.
#
#   Prolog=/etc/slurm/health-prolog.sh
#   PrologFlags=Alloc
gangrun=${GANGRUN:-/opt/gangrun/bin/gangrun}

gpus=()
case $SLURM_JOB_GPUS in ?*) gpus=(--gpus "$(tr ',' '\n' <<<"$SLURM_JOB_GPUS" | grep -c .)") ;; esac
reason=$(cd /tmp && timeout --kill-after=5 45 "$gangrun" health --reason "${gpus[@]}" </dev/null 2>/dev/null)
if [ $? -eq 1 ] && [ -n "$reason" ]; then
  echo "gangrun: $reason" >&2
  scontrol update NodeName="${SLURMD_NODENAME:-$(hostname -s)}" State=DRAIN Reason="gangrun: $reason"
  exit 1
fi
exit 0
