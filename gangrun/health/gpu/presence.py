"""Are the GPUs there, and do they answer: count, loss, wanted recovery, driver, modes, leftovers.

A child asks NVML (see ``adapters.nvml``); PCI is looked at here. Where there is no NVIDIA GPU and none is expected,
every check is unknown, quietly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from gangrun.core.text import counted
from gangrun.health.framework.check import (
    CauseClass,
    Check,
    Evidence,
    Facts,
    Finding,
    Needs,
    Outcome,
    Reading,
    Scope,
    Severity,
    Sticky,
    Value,
)
from gangrun.health.framework.files import text_of
from gangrun.health.framework.policy import HealthPolicy
from gangrun.health.framework.rounds import Surroundings
from gangrun.health.gpu.xid_table import RECOVERY_ACTIONS

NODE = "node"
CHILD_WITHIN_S = 15.0
NO_GPU = "no NVIDIA GPU here"
NVIDIA, DISPLAY_CLASSES = "0x10de", ("0x0300", "0x0302")
DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, VERSION_MISMATCH = 9, 12, 18
RESET_REQUIRED, CORRUPTED_INFOROM = 16, 14
CHILD_ANSWER = "nvml_answer"
PEOPLE_FROM = 1000  # users below are the system's: its services may look at GPUs


def read(around: Surroundings) -> Facts:
    """What NVML says, and how many GPUs are on the bus, which no driver can hide."""
    said = around.probes.ask("gpu", (), CHILD_WITHIN_S)
    node: dict[str, Value] = dict(said.values.get(NODE, {}))
    missing = {place: dict(names) for place, names in said.missing.items()}
    on_bus_count = _on_bus(around)
    if on_bus_count is not None:
        node["on_bus_count"] = on_bus_count
    if said.absent:
        missing.setdefault(NODE, {})[CHILD_ANSWER] = said.absent
    version = re.search(r"Kernel Module[^0-9]*([0-9][0-9.]+)", text_of(around.root / "proc/driver/nvidia/version"))
    if version:
        node["loaded_driver"] = version[1]
    return Facts({**_with_others(said, around.root), NODE: node}, missing)


def _with_others(said: Facts, root: Path) -> dict[str, Mapping[str, Value]]:
    """With how many of each GPU's programs are other people's, as far as /proc shows whose they are."""
    own = _owner(root / "proc" / "self")
    values: dict[str, Mapping[str, Value]] = dict(said.values)
    for place, names in said.values.items():
        owners = [_owner(root / "proc" / pid) for pid in str(names.get("processes_pids", "")).split()]
        if own is not None and any(owner is not None for owner in owners):
            others = [one for one in owners if one is not None and one >= PEOPLE_FROM and one != own]
            values[place] = {**names, "others_count": len(others)}
    return values


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except OSError:
        return None


def _on_bus(around: Surroundings) -> int | None:
    try:
        devices = list((around.root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return None
    return sum(
        text_of(device / "vendor") == NVIDIA and text_of(device / "class").startswith(DISPLAY_CLASSES)
        for device in devices
    )


# ---- for all checks of GPUs ------------------------------------------------------------------------------------------


def gpus(now: Reading) -> tuple[str, ...]:
    """Places of GPUs, in order."""
    return tuple(place for place in now.facts.values if re.fullmatch(r"gpu \d+", place))


def named(now: Reading) -> dict[str, str]:
    """What each GPU is called by those who have to find it: model, UUID, place on the bus."""
    said = {place: [now.facts.get(place, name) for name in ("model", "uuid", "pci")] for place in gpus(now)}
    return {place: ", ".join(str(word) for word in words if word) for place, words in said.items() if any(words)}


def finding(
    check: str,
    place: str,
    severity: Severity,
    sentence: str,
    evidence: Evidence,
    needs: Needs = Needs.RESET,
    cause: CauseClass = CauseClass.HARDWARE,
    sticky: Sticky = Sticky.BOOT,
    scope: Scope = Scope.GPU,
) -> Finding:
    """A finding about a GPU, with what is usual for one."""
    return Finding(check, scope, place, severity, cause, needs, sticky, evidence, sentence)


def why_not(now: Reading, name: str) -> str:
    """Why ``name`` was measured on no GPU."""
    if not gpus(now):
        return _why_none(now)
    return now.facts.why_missing(name) or "no GPU says"


def _why_none(now: Reading) -> str:
    silent = now.facts.missing.get(NODE, {}).get(CHILD_ANSWER)
    if silent:
        return silent
    words = now.facts.get(NODE, "nvml_words")
    if now.facts.number(NODE, "on_bus_count") and words is not None:
        return f"NVML does not answer: {words}"
    return NO_GPU


def each(
    now: Reading,
    name: str,
    limit: str,
    shown: Callable[[list[float]], str],
    bad: Callable[[str, float], Finding | None],
) -> Outcome:
    """One value of every GPU: what to show of all, and the finding of each that is bad."""
    values = {place: value for place in gpus(now) if (value := now.facts.number(place, name)) is not None}
    if not values:
        return Outcome("-", limit, unknown=why_not(now, name))
    found = tuple(one for place, value in values.items() if (one := bad(place, value)) is not None)
    silent_count = len(gpus(now)) - len(values)
    more = f" ({silent_count} not measured)" if silent_count else ""
    return Outcome(shown(list(values.values())) + more, limit, found)


# ---- judging ---------------------------------------------------------------------------------------------------------


def judge_count(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """As many GPUs as were asked for, or as are on the bus."""
    del before
    expected, on_bus = policy.gpus_count, now.facts.number(NODE, "on_bus_count")
    error = now.facts.number(NODE, "nvml_error")
    limit = f"= {expected}" if expected is not None else "= on the bus"
    count = now.facts.number(NODE, "gpus_count")
    if expected and not count and on_bus == 0 and error != VERSION_MISMATCH:
        sentence = f"{expected} GPUs are expected, and none is on the bus"
        one = finding("gpu_count", NODE, Severity.FAIL, sentence, Evidence(0, expected), Needs.REBOOT)
        return Outcome("0 on the bus", limit, (one,))
    if error is not None and _is_fault(error) and (error == VERSION_MISMATCH or expected or on_bus):
        return Outcome("no answer", limit, (_no_driver(error, now, expected),))
    if count is None:
        return Outcome("-", limit, unknown=_why_none(now))
    shown = f"{count:.0f}" + (f", {on_bus:.0f} on the bus" if on_bus is not None else "")
    if expected is not None and count < expected:
        where = f"; {on_bus:.0f} are on the bus" if on_bus is not None else ""
        sentence = f"{count:.0f} GPUs answer instead of {expected}{where}"
        one = finding("gpu_count", NODE, Severity.FAIL, sentence, Evidence(count, expected), Needs.REBOOT)
        return Outcome(shown, limit, (one,))
    if expected is None and on_bus is not None and count < on_bus:
        sentence = f"{count:.0f} of {on_bus:.0f} GPUs answer: this job was given fewer, or the driver lost some"
        one = finding(
            "gpu_count", NODE, Severity.WARN, sentence, Evidence(count, on_bus), Needs.NONE, CauseClass.EITHER
        )
        return Outcome(shown, limit, (one,))
    return Outcome(shown, limit)


def _is_fault(error: float) -> bool:
    return error in (DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, VERSION_MISMATCH)


def _no_driver(error: float, now: Reading, expected: int | None) -> Finding:
    words = str(now.facts.get(NODE, "nvml_words"))
    if error == VERSION_MISMATCH:
        sentence = "the driver was updated and the old one still runs (library and kernel module differ): reboot"
        return finding("gpu_count", NODE, Severity.FAIL, sentence, Evidence(words), Needs.REBOOT, CauseClass.CONFIG)
    on_bus = now.facts.number(NODE, "on_bus_count") or 0
    severity = Severity.FAIL if expected else Severity.WARN
    sentence = f"{on_bus:.0f} GPUs are on the bus, but the driver cannot be asked: {words}"
    return finding("gpu_count", NODE, severity, sentence, Evidence(words), Needs.ADMIN, CauseClass.CONFIG)


def judge_lost(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Does every GPU answer?"""
    del before, policy
    here = gpus(now)
    if not here:
        return Outcome("-", "all answer", unknown=_why_none(now))
    found = []
    for place in here:
        words = now.facts.get(place, "lost")
        if words is None:
            continue
        code = now.facts.number(place, "lost_code")
        needs = {RESET_REQUIRED: Needs.RESET, CORRUPTED_INFOROM: Needs.RMA}.get(int(code or 0), Needs.REBOOT)
        sentence = f"{place} is lost: {words}"
        found.append(finding("gpu_lost", place, Severity.FAIL, sentence, Evidence(words), needs))
    return Outcome(f"{len(here) - len(found)} of {len(here)} answer", "all answer", tuple(found))


def judge_recovery(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """What the GPU itself asks for: the best single sign there is."""
    del before, policy

    def bad(place: str, value: float) -> Finding | None:
        if value == 0:
            return None
        words, fatal, needs = RECOVERY_ACTIONS.get(
            int(value), (f"for action {value:.0f}, unknown here", False, Needs.ADMIN)
        )
        severity = Severity.FAIL if fatal else Severity.WARN
        return finding("gpu_recovery", place, severity, f"{place} asks {words}", Evidence(value), needs)

    return each(now, "recovery_action", "none", _asking, bad)


def _asking(all_of: list[float]) -> str:
    return f"{sum(value != 0 for value in all_of)} of {len(all_of)} ask for one"


def judge_driver(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Are driver library and kernel module of one version?"""
    del before, policy
    library, module = now.facts.get(NODE, "driver"), now.facts.get(NODE, "loaded_driver")
    if library is None:
        return Outcome("-", "library = module", unknown=why_not(now, "driver"))
    alike = {"GPU driver": str(library)}
    if module is None or str(library) == str(module):
        return Outcome(str(library), "library = module", alike=alike)
    sentence = f"the driver's library is {library} and its kernel module {module}: a reboot is due after an update"
    one = finding(
        "gpu_driver", NODE, Severity.WARN, sentence, Evidence(library, module), Needs.REBOOT, CauseClass.CONFIG
    )
    return Outcome(f"{library}, {module}", "library = module", (one,), alike=alike)


MODES = (  # (name, what it should be, words where it is not)
    ("persistence", 1, "persistence mode is off: each start waits seconds for the driver"),
    ("ecc_mode", 1, "ECC is off: memory errors are not seen"),
    ("mig_mode", 0, "it is split into instances (MIG)"),
    ("compute_mode", 0, "its compute mode forbids programs to share it"),
)


def judge_modes(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Is every GPU set up as training wants it?"""
    del before, policy
    here = [place for place in gpus(now) if any(now.facts.number(place, name) is not None for name, _, _ in MODES)]
    if not here:
        return Outcome("-", unknown=why_not(now, "persistence"))
    found = []
    for place in here:
        wrong = [w for name, good, w in MODES if (v := now.facts.number(place, name)) is not None and v != good]
        pending = now.facts.number(place, "ecc_mode_pending")
        if pending is not None and pending != now.facts.number(place, "ecc_mode"):
            wrong.append("a change of its ECC mode waits for a reboot")
        if wrong:
            sentence = f"{place}: {'; '.join(wrong)}"
            cause = CauseClass.CONFIG
            found.append(finding("gpu_modes", place, Severity.WARN, sentence, Evidence(sentence), Needs.ADMIN, cause))
    return Outcome(f"{len(here) - len(found)} of {len(here)} as usual", "ECC on, no MIG", tuple(found))


def judge_leftovers(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Does somebody hold memory of a GPU? Of interest before ranks start; while they run it is they."""
    del before

    def bad(place: str, used: float) -> Finding | None:
        count, others = now.facts.number(place, "processes_count"), now.facts.number(place, "others_count")
        if others:
            whose = f"{counted(int(others), 'program')} of other people"
            sentence = f"{place} is used by {whose}: it was given to both, or is theirs"
            cause = CauseClass.EITHER
            evidence = Evidence(others, 0)
            return finding("gpu_leftovers", place, Severity.WARN, sentence, evidence, Needs.ADMIN, cause, Sticky.NO)
        if used <= policy.leftover_bytes or count is None or count > 0:
            return None
        sentence = f"{place}: {used / 1e9:.1f} GB are in use although no process is listed: something was left behind"
        cause = CauseClass.EITHER
        return finding("gpu_leftovers", place, Severity.WARN, sentence, Evidence(used), Needs.ADMIN, cause, Sticky.NO)

    limit = f"<= {policy.leftover_bytes / 1e9:g} GB of nobody"
    return each(now, "memory_used_bytes", limit, lambda all_of: f"{max(all_of) / 1e9:.1f} GB used at most", bad)


CHECKS = (
    Check("gpu_count", "gpu", "all GPUs are there", judge_count, 60.0),
    Check("gpu_lost", "gpu", "every GPU answers", judge_lost, 15.0),
    Check("gpu_recovery", "gpu", "no GPU asks for a reset or reboot", judge_recovery, 60.0),
    Check("gpu_driver", "gpu", "driver library and kernel module fit", judge_driver, 300.0),
    Check("gpu_modes", "gpu", "GPUs are set up for training", judge_modes, 300.0),
    Check("gpu_leftovers", "gpu", "nobody's memory is left on a GPU", judge_leftovers, 60.0),
)
