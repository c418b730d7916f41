"""Which GPUs of a node a job may use: the others are looked at too, but never fail it.

``CUDA_VISIBLE_DEVICES`` says it, by number or UUID. Where that leaves a doubt (GPUs of several kinds, which CUDA may
number by speed; parts of GPUs; a number that is not there) all of them count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from gangrun.health.framework.check import Check, Facts, Finding, Outcome, Reading, Severity
from gangrun.health.framework.policy import HealthPolicy

VISIBLE = "CUDA_VISIBLE_DEVICES"
NOBODY = frozenset({"", "-1", "NoDevFiles"})  # CUDA passes over what follows these; the last one is Slurm's


def wanted(variables: Mapping[str, str]) -> tuple[str, ...] | None:
    """The GPUs that a job's variables name, by number or UUID; None: they say nothing."""
    if VISIBLE not in variables:
        return None
    named: list[str] = []
    for word in variables[VISIBLE].split(","):
        if word.strip() in NOBODY:
            break
        named.append(word.strip())
    return tuple(named)


def beside(facts: Facts, named: tuple[str, ...] | None) -> frozenset[str]:
    """The places of GPUs that the job may not use; empty where that cannot be told."""
    places = _places(facts)
    if named is None:
        return frozenset()
    if all(word.isascii() and word.isdigit() for word in named):
        used = {f"gpu {int(word)}" for word in named}
        kinds = {facts.get(place, "model") for place in places} - {None}
        certain = used <= set(places) and (len(kinds) < 2 or not named)
        return frozenset(places) - used if certain else frozenset()
    used = set()
    for word in named:
        own = [place for place in places if str(facts.get(place, "uuid") or "").startswith(word)]
        if len(own) != 1:
            return frozenset()  # it may be the one that is lost and cannot say its UUID any more
        used.add(own[0])
    return frozenset(places) - used


def _places(facts: Facts) -> list[str]:
    return [place for place in facts.values if re.fullmatch(r"gpu \d+", place)]


def is_beside(facts: Facts, named: tuple[str, ...] | None, uuid: str) -> bool:
    """May the job not use this GPU? It may be one that is lost, and cannot say any more that this is its UUID."""
    others = beside(facts, named)
    known = {place: facts.get(place, "uuid") for place in _places(facts)}
    own = [known[place] for place in known if place not in others]
    return bool(others and uuid) and None not in own and uuid not in own


def spared(finding: Finding, others: frozenset[str]) -> Finding:
    """The finding, which is a warning only where it is about a GPU that the job may not use."""
    known = any(finding.place == place or finding.place.startswith(f"{place} ") for place in others)
    return as_warning(finding) if known else finding


def as_warning(finding: Finding) -> Finding:
    """The finding, which is about a GPU that the job may not use."""
    severity = Severity.WARN if finding.severity is Severity.FAIL else finding.severity
    return replace(finding, severity=severity, beside=True, sentence=f"{finding.sentence} (not a GPU of this job)")


def of_job(check: Check) -> Check:
    """The check with its findings about other GPUs made warnings."""

    def judge(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
        outcome = check.judge(now, before, policy)
        others = beside(now.facts, policy.gpus_used)
        return replace(outcome, findings=tuple(spared(one, others) for one in outcome.findings))

    return replace(check, judge=judge)
