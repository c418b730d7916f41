"""Firmware of devices of one kind: one version, on this node and on all.

A set-up's matter, told and never held against a node. What should be the same everywhere goes along as ``alike``: who
sees several nodes compares it (``cli.health_alike``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from gangrun.health.framework.check import (
    CauseClass,
    Check,
    Evidence,
    Finding,
    Needs,
    Outcome,
    Reading,
    Scope,
    Severity,
    Sticky,
)
from gangrun.health.framework.policy import HealthPolicy
from gangrun.health.gpu.presence import gpus, why_not
from gangrun.health.network.ports import in_use

ONE = "one of each kind"
OF_GPUS = (("vbios", "VBIOS"), ("info_rom_version", "info ROM"))


def judge_gpus(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Do GPUs of one model carry the same firmware?"""
    del before, policy
    found: list[Finding] = []
    usual: dict[str, str] = {}
    for name, what in OF_GPUS:
        kinds: dict[str, dict[str, str]] = {}
        for place in gpus(now):
            if (version := now.facts.get(place, name)) is not None:
                model = str(now.facts.get(place, "model") or "GPU")
                kinds.setdefault(f"{model} {what}", {})[place] = str(version)
        more, common = _compared("gpu_firmware", Scope.GPU, kinds)
        found += more
        usual |= common
    if not usual:
        return Outcome("-", ONE, unknown=why_not(now, OF_GPUS[0][0]))
    return Outcome(_shown(usual), ONE, tuple(found), alike=usual)


def judge_devices(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Do network devices of one kind carry the same firmware?"""
    del before
    kinds: dict[str, dict[str, str]] = {}
    for place in in_use(now, policy):
        device, version = str(now.facts.get(place, "device")), now.facts.get(place, "firmware")
        if version is not None:
            kind = now.facts.get(place, "board") or "network device"
            kinds.setdefault(f"{kind} firmware", {})[device] = str(version)
    found, usual = _compared("ib_firmware", Scope.PORT, kinds)
    if not usual:
        return Outcome("-", ONE, unknown="no device in use says its firmware")
    return Outcome(_shown(usual), ONE, tuple(found), alike=usual)


def _compared(check: str, scope: Scope, kinds: Mapping[str, Mapping[str, str]]) -> tuple[list[Finding], dict[str, str]]:
    found, usual = list[Finding](), dict[str, str]()
    for kind, versions in kinds.items():
        common = usual[kind] = most_common(versions.values())
        for place, version in versions.items():
            if version != common:
                sentence = f"{place} has another {kind} ({version}) than those beside it ({common})"
                evidence, cause = Evidence(version, common), CauseClass.CONFIG
                found.append(
                    Finding(
                        check, scope, place, Severity.WARN, cause, Needs.ADMIN, Sticky.NO, evidence, sentence
                    )
                )  # fmt: skip
    return found, usual


def most_common(versions: Iterable[str]) -> str:
    """What most have; of those that equally many have the last in order, which is the newest more often than not."""
    counts = Counter(versions)
    return max(counts, key=lambda version: (counts[version], version))


def _shown(usual: Mapping[str, str]) -> str:
    return ", ".join(dict.fromkeys(usual.values()))


CHECKS = (Check("gpu_firmware", "gpu", "GPUs of one model have one firmware", judge_gpus, 300.0),)
