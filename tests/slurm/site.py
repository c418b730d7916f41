"""The files of the test cluster: Slurm's configuration, and the wrappers that let its tools fail on demand.

Times are short, so that what takes minutes on a real cluster takes seconds here; but not the one after which Slurm
believes that a node is gone. It asks nodes a few at a time and waits long for one that is cut off: with a short one
the others, not asked meanwhile, count as gone too, and Slurm kills what runs there. Next: ``cluster``, which runs it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.slurm import reach

NODES = tuple(f"n{number}" for number in range(1, 7))
USER = "trainer"
GPUS_PER_NODE = 8

SETTINGS: Mapping[str, str] = {
    "ClusterName": "gang",
    "SlurmctldHost": "ctl({ctl})",
    "AuthType": "auth/munge",
    "AuthInfo": "socket={base}/munge/socket",
    "SlurmUser": "root",
    "SlurmdUser": "root",
    "StateSaveLocation": "{base}/state",
    "SlurmdSpoolDir": "{base}/spool/%n",
    "SlurmctldPidFile": "{base}/state/slurmctld.pid",
    "SlurmdPidFile": "{base}/spool/%n.pid",
    "SlurmdTimeout": "300",
    "SlurmctldTimeout": "10",
    "KillWait": "5",
    "MinJobAge": "300",
    "ReturnToService": "2",
    "InactiveLimit": "0",
    "MailProg": "/bin/true",
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "JobAcctGatherType": "jobacct_gather/none",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CPU",
    "SchedulerType": "sched/backfill",
    "SchedulerParameters": "bf_interval=1,sched_interval=1,batch_sched_delay=0",
    "SlurmdParameters": "config_overrides",
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
    "Prolog": "{base}/etc/prolog",
    "GresTypes": "gpu",
}

HARDWARE = """
NodeName={name} NodeHostname={name} NodeAddr={address} CPUs=16 RealMemory=16000 Gres=gpu:8 State=UNKNOWN
"""

# Any job of ``high`` takes nodes from one of the ``low`` ones, which has GraceTime seconds left then.
PARTITIONS = """
PartitionName=main Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF State=UP
PartitionName=low-cancel Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=6 State=UP
PartitionName=low-requeue Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=6 State=UP
PartitionName=high Nodes=ALL PriorityTier=100 PreemptMode=OFF State=UP
"""

WRAPPED = ("sbatch", "scancel", "scontrol", "squeue")

# Stands at the real tool's path on every host. What it shall do is a file of shell words; where there are several,
# each is used for one call, in the order of their names.
WRAPPER = """#!/bin/bash
tool={tool} real={base}/real/{tool} control={base}/control
printf '%s\\t%s\\t%s\\n' "$HOSTNAME" "$tool" "$*" >>"$control/calls"
for order in "$control/$tool@$HOSTNAME".* "$control/$tool".[0-9]*; do
  mv "$order" "$control/taken.$$" 2>/dev/null || continue
  . "$control/taken.$$"
  exit
done
for order in "$control/$tool@$HOSTNAME" "$control/$tool"; do
  if [ -e "$order" ]; then . "$order"; exit; fi
done
exec "$real" "$@"
"""

# Another Slurm stands in the place of the machine's own, on these hosts only.
OTHER = """
plugins=$(dirname "$(cd {root} && find usr/lib -name auth_munge.so | head -n 1)")
mount --bind "{root}/$plugins" "/$plugins"
while read -r program; do
  if [ -e "/$program" ]; then mount --bind "{root}/$program" "/$program"; fi
done <{root}/programs
"""

# Where a file of its name lies, a job's start fails on that node.
PROLOG = """#!/bin/bash
if [ -e {base}/control/prolog-fails@$SLURMD_NODENAME ]; then echo "prolog: told to fail"; exit 1; fi
exit 0
"""


@contextlib.contextmanager
def for_everybody() -> Iterator[None]:
    """What is made here can be read by all, though whoever runs the tests may have a careful umask."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def _replace(path: Path, text: str) -> None:
    """Whole or not at all: a slurmd that is just starting, or told to read it again, dies of an empty one."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


class Site:
    """Where everything lies, and what stands in it."""

    def __init__(self, base: Path, uid: int) -> None:
        self.base, self.uid = base, uid
        self.home, self.control = base / "home", base / "control"
        self.log = base / "log"
        self.conf = base / "etc" / "slurm.conf"

    def lay_out(self) -> None:
        """Every folder, and the files that do not depend on the hosts."""
        with for_everybody():
            self._lay_out()

    def _lay_out(self) -> None:
        self.base.mkdir(mode=0o755)
        for name in ("etc", "log", "state", "munge", "spool", "real", "bin", "gpu", "home", "control"):
            (self.base / name).mkdir(mode=0o755)
        os.chown(self.home, self.uid, self.uid)
        self.control.chmod(0o777)
        (self.control / "calls").touch()
        (self.control / "calls").chmod(0o666)
        (self.base / "munge" / "key").write_bytes(os.urandom(128))
        (self.base / "munge" / "key").chmod(0o600)
        for number in range(GPUS_PER_NODE):
            (self.base / "gpu" / f"gpu{number}").symlink_to("/dev/null")  # slurmd wants a device, and never opens it
        for tool in WRAPPED:
            (self.base / "real" / tool).touch()
            self.program(self.base / "bin" / tool, WRAPPER.format(tool=tool, base=self.base))
        self.program(self.base / "etc" / "prolog", PROLOG.format(base=self.base))
        users = f"{USER}:x:{self.uid}:{self.uid}::{self.home}:/bin/bash\n"
        (self.base / "etc" / "passwd").write_text(Path("/etc/passwd").read_text() + users)
        (self.base / "etc" / "group").write_text(Path("/etc/group").read_text() + f"{USER}:x:{self.uid}:\n")
        (self.base / "etc" / "hosts").touch()

    @staticmethod
    def program(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)

    def mounts(self) -> list[str]:
        """Shell lines for a host: its users and names, and the wrappers in the tools' places."""
        lines = [f"mount --bind {self.base}/etc/{name} /etc/{name}" for name in ("hosts", "passwd", "group")]
        if reach.OTHER_SLURM:
            lines += [OTHER.format(root=Path(reach.OTHER_SLURM).resolve())]
        for tool in WRAPPED:
            lines.append(f'mount --bind "$(command -v {tool})" {self.base}/real/{tool}')
            lines.append(f'mount --bind {self.base}/bin/{tool} "$(command -v {tool})"')
        return lines

    def configure(self, addresses: Mapping[str, str], changed: Mapping[str, str]) -> None:
        """Write Slurm's configuration and everybody's names."""
        with for_everybody():
            self._configure(addresses, changed)

    def _configure(self, addresses: Mapping[str, str], changed: Mapping[str, str]) -> None:
        lines = [f"{address} {name}" for name, address in addresses.items()]
        hosts, names = self.base / "etc" / "hosts", "127.0.0.1 localhost\n" + "\n".join(lines) + "\n"
        if not hosts.exists() or hosts.read_text() != names:
            hosts.write_text(names)  # in place, and so only once: each host has this very file over its own
        settings = {**SETTINGS, **changed}
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        text = text.format(base=self.base, ctl=addresses["ctl"])
        text += "".join(HARDWARE.format(name=name, address=addresses[name]) for name in NODES) + PARTITIONS
        _replace(self.conf, text)
        gpus = f"NodeName=n[1-{len(NODES)}] Name=gpu File={self.base}/gpu/gpu[0-{GPUS_PER_NODE - 1}]\n"
        _replace(self.base / "etc" / "gres.conf", gpus)
