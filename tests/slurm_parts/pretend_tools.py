"""squeue, scontrol, scancel and sbatch as a folder of small programs, for commands that only ask and order.

They are foreign tools: what gangrun starts, and how it reads their words, is its own. A file holds their cluster.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PROGRAM = r"""#!{python} -IS
import json, os, re, sys
here = {here!r}
tool, words = os.path.basename(sys.argv[0]), sys.argv[1:]
with open(here + "/calls", "a") as calls:
    calls.write(json.dumps([tool, *words]) + "\n")
with open(here + "/cluster.json") as file:
    cluster = json.load(file)
jobs = cluster["jobs"]
def save():
    with open(here + "/cluster.new", "w") as file:
        json.dump(cluster, file)
    os.rename(here + "/cluster.new", here + "/cluster.json")
def die(text):
    sys.stderr.write(text + "\n")
    sys.exit(1)
if cluster["silent"]:
    die("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
if tool in cluster["refuses"]:
    die(cluster["refuses"][tool])
for old, new in cluster["moves"]:
    if os.path.exists(old):
        os.rename(old, new)
if tool == "squeue":
    form = words[words.index("-o") + 1]
    names = words[words.index("--name") + 1].split(",") if "--name" in words else None
    for job in jobs.values():
        if names is None or job["j"] in names:
            sys.stdout.write(re.sub("%(.)", lambda match: str(job.get(match[1], "")), form) + "\n")
elif tool == "scancel":
    for word in words:
        if jobs[word]["T"] in ("PENDING", "RUNNING"):
            jobs[word].update(T="CANCELLED", e="2026-11-18T12:00:00", N=jobs[word]["N"])
    save()
elif tool == "sbatch":
    text = open(words[-1]).read()
    said = lambda key: (re.search("#SBATCH --" + key + "=(.*)", text) or [0, ""])[1].strip("'\"")
    number = str(max(map(int, jobs), default=0) + 1)
    jobs[number] = dict(i=number, T="PENDING", r="Resources", j=said("job-name"), k=said("comment"), x=said("exclude"),
                        N="", u="eve", P="main", e="N/A", B="n/a", E="(null)")
    save()
    print("Submitted batch job " + number)
elif tool == "sacct":
    found = cluster["accounting"].get(words[words.index("-j") + 1])
    if found is None:
        die("Slurm accounting storage is disabled")
    print(found.replace("|", words[3].partition("=")[2]))
elif words[:2] == ["show", "job"]:
    if words[2] not in jobs:
        die("slurm_load_jobs error: Invalid job id specified")
    job = jobs[words[2]]
    print("JobId=%s JobName=%s\n   UserId=eve(1000) GroupId=eve(1000)\n   JobState=%s Reason=%s Dependency=(null)\n"
          "   Restarts=0 ExitCode=0:0\n   EndTime=%s\n   Partition=main\n   NodeList=%s\n   Comment=%s" % (
          job["i"], job["j"], job["T"], job["r"].replace(" ", "_") or "None", job["e"], job["N"], job["k"]))
elif words[0] == "release":
    jobs[words[1]].update(r="None")
    save()
"""


class PretendTools:
    """Their folder belongs at the front of PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("squeue", "scontrol", "scancel", "sbatch", "sacct"):
            path = folder / name
            path.write_text(PROGRAM.replace("{python}", sys.executable).replace("{here!r}", repr(str(folder))))
            path.chmod(0o755)
        self.cluster: dict[str, Any] = {"jobs": {}, "silent": False, "refuses": {}, "moves": [], "accounting": {}}
        self._write()

    def _write(self) -> None:
        new = self.folder / "cluster.test"
        new.write_text(json.dumps(self.cluster))
        new.rename(self.folder / "cluster.json")

    def change(self, **what: Any) -> None:
        """``silent=True``, ``refuses={"sbatch": "words"}``, ``accounting={"12": "COMPLETED|n0|name"}``, or ``moves``:
        files to rename while a tool runs.
        """
        self.cluster = self.read() | what
        self._write()

    def job(self, number: int, state: str, reason: str = "None", *, name: str, comment: str, nodes: str = "",
            end: str = "N/A", dependency: str = "(null)") -> None:  # fmt: skip
        """Put a job there, or another state of it."""
        self.cluster = self.read()
        self.cluster["jobs"][str(number)] = {
            "i": str(number), "T": state, "r": reason, "j": name, "k": comment, "N": nodes, "e": end, "u": "eve",
            "P": "main", "B": "n/a", "x": "", "E": dependency,
        }  # fmt: skip
        self._write()

    def forget(self, number: int) -> None:
        """MinJobAge is over."""
        self.cluster = self.read()
        del self.cluster["jobs"][str(number)]
        self._write()

    def read(self) -> dict[str, Any]:
        """The cluster as the tools left it."""
        return dict(json.loads((self.folder / "cluster.json").read_text()))

    def state(self, number: int) -> str:
        return str(self.read()["jobs"][str(number)]["T"])

    def calls(self, tool: str = "") -> list[list[str]]:
        """Every call, oldest first."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [words for words in map(json.loads, lines) if not tool or words[0] == tool]
