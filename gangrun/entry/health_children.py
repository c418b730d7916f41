"""Programs that health asks by starting them: tests of devices, dcgmi, a site's own commands.

Runs in the probe's child. Each answer is plain values as ``health.framework.readings`` reads them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.local.box import cpus_count, gpus_count
from gangrun.adapters.local.children import NOT_FOUND, ChildEnd, together
from gangrun.config import environment
from gangrun.health.active.devices import CPU, DEEP, ENDS_BEFORE_S, NODE
from gangrun.health.framework.readings import text_of
from gangrun.health.gpu.dcgm import WITHIN_S

PROGRAM = Path(__file__).resolve().parents[1] / "health" / "active" / "device_child.py"
PAIR_PROGRAM = PROGRAM.with_name("pair_child.py")
SECONDS = {"quick": (0.3, 0.25, 1 << 27), "deep": (20.0, 0.8, 1 << 50)}  # each test, share of memory, at most so much
GPU_SHARE = 0.8
SUM_BYTES = {"cpu": 8 << 20, "gpu": 256 << 20}
SUMS_WITHIN_SHARE = 0.5
IDENTITIES_WITHIN_S = 5.0
RESULTS = {  # test -> the names that it measures
    "product": ("gemm_mismatches", "gemm_tflops"),
    "memory": ("memory_mismatches",),
    "bandwidth": ("memory_gbps",),
    "copies": ("h2d_gbps", "d2h_gbps"),
    "allreduce": ("allreduce_mismatches", "allreduce_gbps"),
}


def active(how: str, within_s: float, python: str = "") -> dict[str, Any]:
    """Every device of this node at work."""
    variables = environment.all_variables()
    python = python or environment.python_of(variables)
    gpus = gpus_count(variables)
    load = text_of(Path("/proc/loadavg")).split()[:1]
    with tempfile.TemporaryDirectory(prefix="gangrun-active-") as folder:
        asked = _questions(how, within_s, gpus, Path(folder))
        commands = [[python, str(PROGRAM), json.dumps(one)] for one in asked]
        here = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}  # a host's own name may lead elsewhere
        said = together(commands, {**variables, **here}, within_s, SystemClock().now)
    facts = gathered(asked, said, within_s, gpus)
    if "values" in facts and load:
        facts["values"][NODE] |= {"load": float(load[0]), "cpus": cpus_count()}
    return facts


def _questions(how: str, within_s: float, gpus: int, folder: Path) -> list[dict[str, Any]]:
    seconds, share, most_bytes = SECONDS[how]
    world = gpus or min(2, cpus_count())
    asked = []
    for rank in range(world):
        device = f"cuda:{rank}" if gpus else CPU
        alone = ["product", "memory", "bandwidth", *(["copies"] if gpus else [])] if gpus or rank == 0 else []
        asked.append(
            {
                "device": device,
                "cpu": cpu_model(),
                "tests": [*(["allreduce"] if world > 1 else []), *alone],  # together while all are there
                "seconds": seconds,
                "share": GPU_SHARE if gpus else share,
                "most_bytes": 1 << 50 if gpus else most_bytes,
                "rank": rank,
                "world": world,
                "store": str(folder / "store"),
                "meet_s": within_s * SUMS_WITHIN_SHARE,
                "sum_bytes": SUM_BYTES["gpu" if gpus else "cpu"] * (4 if how == DEEP and gpus else 1),
            }
        )
    return asked


def cpu_model() -> str:
    """What the processor calls itself."""
    lines = text_of(Path("/proc/cpuinfo"), 65536).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "cpu")


def gathered(
    asked: Sequence[Mapping[str, Any]], said: Sequence[ChildEnd], within_s: float, gpus: int
) -> dict[str, Any]:
    """What the children knew, by place; and why the rest is missing."""
    values: dict[str, dict[str, Any]] = {NODE: {"gpus": gpus}}
    missing: dict[str, dict[str, str]] = {}
    for question, one in zip(asked, said, strict=True):
        rank = int(question["rank"])
        place = f"gpu {rank}" if gpus else CPU
        lines = _lines(one.out)
        if (absent := next((line["absent"] for line in lines if "absent" in line), None)) is not None:
            return {"absent": str(absent)}
        mine = values.setdefault(place, {}) if gpus or rank == 0 else {}
        why = missing.setdefault(place, {}) if gpus or rank == 0 else {}
        failed = {str(line.get("failed")): str(line.get("why")) for line in lines if "failed" in line}
        for line in lines:
            if "failed" not in line:
                _sort(line, mine, values[NODE] if rank == 0 else {})
        end = _end(one, within_s)
        for test, names in RESULTS.items():
            for name in names:
                if name not in mine and (test != "allreduce" or rank == 0):
                    not_asked = "" if test in question["tests"] else "it takes two devices, or a GPU"
                    target = missing.setdefault(NODE, {}) if test == "allreduce" else why
                    if name not in values[NODE]:
                        target[name] = failed.get(test) or not_asked or end
        if not {"usable", "unusable"} & mine.keys():
            why["usable"] = end
    values[NODE] |= {"device": str(values.get("gpu 0" if gpus else CPU, {}).get("device", "")), **_versions(values)}
    return {"values": values, "missing": missing}


def _sort(line: Mapping[str, Any], mine: dict[str, Any], node: dict[str, Any]) -> None:
    """What all devices did together is the node's."""
    for name, value in line.items():
        (node if name.startswith("allreduce") else mine)[name] = value


def _versions(values: dict[str, dict[str, Any]]) -> dict[str, str]:
    driver = text_of(Path("/sys/module/nvidia/version"))
    torch = next((str(one["torch"]) for one in values.values() if "torch" in one), "")
    for one in values.values():
        if driver:
            one["driver"] = driver
    return {"torch": torch}


def exchanged(
    python: str, asked: Mapping[str, Any], within_s: float, variables: Mapping[str, str], now: Callable[[], float]
) -> dict[str, Any]:
    """What a partner and this node measured between them, or an ``error``; ``began``: torch was there in time."""
    [said] = together([[python, str(PAIR_PROGRAM), json.dumps(asked)]], variables, within_s, now)
    told: dict[str, Any] = {}
    for line in _lines(said.out):
        told.update(line)
    return told if {"error", "bytes_per_s"} & told.keys() else {**told, "error": said.last_words or "no answer in time"}


def _lines(out: str) -> list[dict[str, Any]]:
    found = []
    for line in out.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue  # a library's own words
        if isinstance(value, dict):
            found.append(value)
    return found


def _end(one: ChildEnd, within_s: float) -> str:
    if one.code is None:
        return f"not done within {within_s:g} s"
    if one.code == 0:
        return "not tested"
    how = f"ended with {one.code}" if one.code > 0 else f"was killed by signal {-one.code}"
    return f"the test {how}" + (f": {one.last_words}" if one.last_words else "")


def dcgm(words: Sequence[str], within_s: float = WITHIN_S) -> dict[str, Any]:
    """What dcgmi answers; where it is not installed, that."""
    from gangrun.health.framework.readings import plain_facts
    from gangrun.health.gpu import dcgm as answers

    variables = environment.all_variables()
    if shutil.which("dcgmi", path=variables.get("PATH")) is None:
        return {"absent": answers.ABSENT}
    now = SystemClock().now
    until = now() + within_s - ENDS_BEFORE_S
    tests = tuple(words[:1]) != answers.HEALTH[:1]
    uuids, seen = _identities(variables, until - now(), now) if tests else ({}, [])
    asked = answers.only_of(words, uuids, seen) if tests else tuple(words)
    [said] = together([["dcgmi", *asked]], variables, until - now(), now)
    if said.code is None:
        return {"absent": f"dcgmi did not answer within {within_s:g} s"}
    facts = answers.parsed(tuple(words), said.out or said.err)
    if not tests and answers.accuses(facts):
        uuids, seen = _identities(variables, until - now(), now)
    return plain_facts(answers.identified(facts, uuids, seen))


def _identities(
    variables: Mapping[str, str], within_s: float, now: Callable[[], float]
) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Which GPU DCGM means by which number, and which of them this job can see."""
    from gangrun.health.gpu import dcgm as answers

    try:
        from gangrun.adapters.nvml import seen
    except ImportError:
        return {}, []
    [said] = together([["dcgmi", *answers.DISCOVERY]], variables, max(0.1, min(IDENTITIES_WITHIN_S, within_s)), now)
    return answers.identities(said.out), seen()


def site_command(within_s: float, argv: Sequence[str]) -> dict[str, Any]:
    """How one of a site's own commands ended, and what it said last."""
    [said] = together([argv], environment.all_variables(), within_s, SystemClock().now)
    if said.code is None:
        return {"missing": {"command": {"code": f"it did not end within {within_s:g} s"}}}
    if said.code < 0 or said.code == NOT_FOUND:
        how = (
            f"it was killed by signal {-said.code}" if said.code < 0 else said.last_words or "there is no such command"
        )
        return {"missing": {"command": {"code": how}}}
    return {"values": {"command": {"code": said.code, "said": said.last_words}}}
