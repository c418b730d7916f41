#!/bin/bash
# Slurm's HealthCheckProgram: slurmd runs it as root every HealthCheckInterval seconds, and ends it after 60.
# Slurm does nothing with its exit code, so it drains the node itself, where a check failed. It never resumes one.
#
#   HealthCheckProgram=/etc/slurm/health-check-program.sh
#   HealthCheckInterval=300
#   HealthCheckNodeState=ANY,CYCLE
gangrun=${GANGRUN:-/opt/gangrun/bin/gangrun}
node=${SLURMD_NODENAME:-$(hostname -s)}

reason=$(cd /tmp && timeout --kill-after=5 45 "$gangrun" health --reason </dev/null 2>/dev/null)
if [ $? -eq 1 ] && [ -n "$reason" ]; then # failed; 0 is well, 3: nothing could be measured; a crash gives no reason
  state=$(scontrol show node "$node" --oneliner)
  case $state in
    *State=*DRAIN*) ;; # somebody's reason is there already
    *) scontrol update NodeName="$node" State=DRAIN Reason="gangrun: $reason" ;;
  esac
fi
exit 0
