"""What srun starts on each node of a job: finds out which node this is, and becomes its warden.

Every task of a step is started with the same words; only the environment tells the nodes apart.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.config import environment
from gangrun.launch.node_spec import filled
from gangrun.node import warden

EXIT_NO_NODE = 78
EXIT_NO_LOG = 74


def speak_into(log: Path) -> str:
    """From now on all that is said goes there: srun, which hears us till then, may die with its host. Why not, if so.

    slurmstepd could open it as well, but where that fails it is said nowhere.
    """
    try:
        opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError as error:
        return f"this node cannot open a file in the run directory: {log}: {error.strerror or error}"
    os.dup2(opened, 1)
    os.dup2(opened, 2)
    os.close(opened)
    return ""


def main(words: list[str]) -> int:
    """``SPEC RUN_DIR``: the warden's spec as JSON, and what its processes find in GANGRUN_RUN_DIR."""
    variables = environment.all_variables()
    node = variables.get("SLURMD_NODENAME", "")
    if not node:
        os.write(2, b"SLURMD_NODENAME is not set: this is started by srun, on each node of a job\n")
        return EXIT_NO_NODE
    why = speak_into(RunPaths(Path(words[1])).process_log(node))
    if why:
        os.write(2, f"{why}\n".encode("utf-8", "replace"))
        return EXIT_NO_LOG
    spec = {key: filled(value, node) for key, value in json.loads(words[0]).items()}
    command = warden.argv(sys.executable, {**spec, "writes_log": True})
    os.execve(command[0], command, {**variables, "GANGRUN_RUN_DIR": words[1]})  # noqa: S606 - no shell is the point
    raise AssertionError("unreachable")
