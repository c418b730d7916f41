"""What NVIDIA's DCGM says, if it is installed and lets users ask: its watches, and its own tests.

``dcgmi`` prints JSON whose shape differs from version to version, so it is walked for what can be recognised. A word
that is not known here is neither good nor bad. Without ``dcgmi`` nothing is said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from gangrun.health.framework.check import (
    CauseClass,
    Check,
    CheckLook,
    CheckOutcome,
    CheckSubject,
    Finding,
    Needs,
    NodeFacts,
    Scope,
    Severity,
    Sticky,
    Value,
)  # fmt: skip
from gangrun.health.framework.rounds import CheckFamily, HealthSurroundings
from gangrun.health.gpu.devices import beside

NAME, TEST_NAME, NODE, SEEN = "dcgm", "dcgm_test", "node", "seen"
ABSENT = "dcgmi is not installed here"
DISCOVERY = ("discovery", "-l")
HEALTH, TEST, DEEP_TEST = ("health", "-c", "-j"), ("diag", "-r", "1", "-j"), ("diag", "-r", "2", "-j")
WITHIN_S, TEST_WITHIN_S, DEEP_TEST_WITHIN_S = 20.0, 180.0, 900.0
WORDS_MAX_CHARS = 160
HEALTH_WORDS = {"healthy": Severity.OK, "warning": Severity.WARN, "failure": Severity.FAIL}
TEST_WORDS = {"pass": Severity.OK, "warn": Severity.WARN, "warning": Severity.WARN, "fail": Severity.FAIL}


def read(around: HealthSurroundings) -> NodeFacts:
    """What its watches saw."""
    return around.probes.ask(NAME, HEALTH, WITHIN_S)


def read_test(around: HealthSurroundings) -> NodeFacts:
    """Its test of level 1, which takes half a minute."""
    return _tested(around, TEST_WITHIN_S)


def read_deep_test(around: HealthSurroundings) -> NodeFacts:
    """Its test of level 2, which takes minutes: memory and PCIe as well."""
    return _tested(around, DEEP_TEST_WITHIN_S, DEEP_TEST)


def _tested(around: HealthSurroundings, within_s: float, words: Sequence[str] = TEST) -> NodeFacts:
    return around.probes.ask(TEST_NAME, (f"{within_s:g}", *words), within_s)


# ---- what it prints --------------------------------------------------------------------------------------------------


def parsed(words: Sequence[str], out: str) -> NodeFacts:
    """The values in what ``dcgmi`` printed; none where it printed no JSON."""
    start = out.find("{")  # warnings may stand before it
    try:
        plain = json.JSONDecoder().raw_decode(out[start:])[0] if start >= 0 else None
    except (ValueError, RecursionError):
        plain = None
    if not isinstance(plain, dict):
        said = " ".join(out.split())
        return NodeFacts(absent=f"dcgmi answers no JSON: {said[:WORDS_MAX_CHARS]}" if said else "dcgmi says nothing")
    return _health(plain) if words[:1] == ("health",) else _test(plain)


def accuses(facts: NodeFacts) -> bool:
    """Does it say of any GPU that it is not well?"""
    return any(
        HEALTH_WORDS.get(str(names.get("health", "")).lower(), Severity.OK) is not Severity.OK
        for names in facts.values.values()
    )


def identities(out: str) -> dict[str, str]:
    """UUIDs of GPUs by DCGM's own numbers, from the table that ``dcgmi discovery -l`` prints."""
    found: dict[str, str] = {}
    place = ""
    for line in out.splitlines():
        if number := re.match(r"\|\s*(\d{1,4})\s*\|", line):
            place = f"gpu {int(number[1])}"
        if place and (uuid := re.search(r"\bUUID:\s*(GPU-[0-9A-Za-z-]+)", line)):
            found[place] = uuid[1]
    return found


def identified(facts: NodeFacts, uuids: Mapping[str, str], seen: Sequence[tuple[str, str]]) -> NodeFacts:
    """With the UUID of each GPU that DCGM speaks of, and those (with models) that this job's processes can see."""
    values = {place: {**names, **_uuid(uuids, place)} for place, names in facts.values.items()}
    visible = {f"{SEEN} {index}": {"uuid": uuid, "model": model} for index, (uuid, model) in enumerate(seen)}
    return replace(facts, values={**values, **visible})


def _uuid(uuids: Mapping[str, str], place: str) -> dict[str, Value]:
    return {"uuid": uuids[place]} if place in uuids else {}


def only_of(words: Sequence[str], uuids: Mapping[str, str], seen: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The words of a test that leaves GPUs of others alone; as they are where it cannot be told which these are."""
    numbers = {uuid: place.removeprefix("gpu ") for place, uuid in uuids.items()}
    own = [numbers[uuid] for uuid, _ in seen if uuid in numbers]
    whole = not own or len(own) < len(seen) or len(own) == len(uuids)
    return tuple(words) if whole else (*words, "-i", ",".join(own))


def _others(look: CheckLook) -> frozenset[str]:
    """Places, by DCGM's numbers, of GPUs that the job cannot see or may not use; what is in doubt counts."""
    facts = look.facts
    visible = {f"gpu {k}": facts.values[p] for k, p in enumerate(p for p in facts.values if p.startswith(SEEN))}
    spare = beside(NodeFacts(visible), look.policy.gpus_used)
    own = {names["uuid"] for place, names in visible.items() if place not in spare}
    known = {place: uuid for place in facts.values if not place.startswith(SEEN) and (uuid := facts.get(place, "uuid"))}
    return frozenset(place for place, uuid in known.items() if visible and uuid not in own)


def _health(plain: dict[str, Any]) -> NodeFacts:
    values: dict[str, dict[str, Value]] = {}
    for path, word in _valued(plain, ()):
        if word.lower() in HEALTH_WORDS:
            place = _gpu_of(path)
            if place == NODE and path[-1:] != ("Overall Health",):
                continue
            known = values.setdefault(place, {})
            if _worse(word, str(known.get("health", "Healthy")), HEALTH_WORDS):
                known["health"] = word
            known.setdefault("health", word)
        elif (place := _gpu_of(path)) != NODE and word.strip():
            known = values.setdefault(place, {})
            known["words"] = f"{known['words']}; {word.strip()}" if "words" in known else word.strip()
    return NodeFacts(_short(values), absent="" if values else "what dcgmi answers is not known here")


def _valued(plain: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """(path of names, word) of all that has a value."""
    if isinstance(plain, dict):
        if isinstance(plain.get("value"), str):
            yield path, plain["value"]
        for name, inner in plain.items():
            if name in ("children", "body"):
                yield from _valued(inner, path)
            elif name != "value":
                yield from _valued(inner, (*path, str(name)))
    elif isinstance(plain, list):
        for inner in plain:
            yield from _valued(inner, path)


def _gpu_of(path: Sequence[str]) -> str:
    for name, number in pairwise(path):
        if name.upper().startswith("GPU") and re.fullmatch(r"\d{1,4}", number):
            return f"gpu {int(number)}"
    found = next((match for name in path if (match := re.fullmatch(r"GPU (?:ID: )?(\d{1,4})", name))), None)
    return f"gpu {int(found[1])}" if found else NODE


def _test(plain: dict[str, Any]) -> NodeFacts:
    values: dict[str, dict[str, Value]] = {}
    for test, result in _results(plain, ""):
        word = str(result["status"])
        if word.lower() not in TEST_WORDS:
            continue  # skipped, not run, or a word of a newer version
        told = [
            str(one.get("warning", one)) if isinstance(one, dict) else str(one) for one in _list(result.get("warnings"))
        ]
        for place in _places(result):
            known = values.setdefault(place, {"tests": 0, "test": "pass"})
            known["tests"] = int(known["tests"]) + 1
            if _worse(word, str(known["test"]), TEST_WORDS):
                known |= {"test": word, "words": f"{test}: {'; '.join(told) or word}"}
    return NodeFacts(_short(values), absent="" if values else "dcgmi tested nothing, or nothing that is known here")


def _results(plain: object, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name of the test, result) of all that has a status, except sums of others."""
    if isinstance(plain, dict):
        own = plain.get("name", name)
        if isinstance(plain.get("status"), str):
            yield str(own), plain
        for key, inner in plain.items():
            if key != "test_summary":
                yield from _results(inner, str(own))
    elif isinstance(plain, list):
        for inner in plain:
            yield from _results(inner, name)


def _places(result: dict[str, Any]) -> list[str]:
    if str(result.get("entity_group", "GPU")).upper() == "GPU" and str(result.get("entity_id", "")).isdigit():
        return [f"gpu {result['entity_id']}"]
    numbers = [part.strip() for part in str(result.get("gpu_ids", result.get("gpu_id", ""))).split(",")]
    return [f"gpu {int(part)}" for part in numbers if part.isascii() and part.isdigit()] or [NODE]


def _worse(new: str, old: str, words: dict[str, Severity]) -> bool:
    order = (Severity.OK, Severity.WARN, Severity.FAIL)
    return order.index(words[new.lower()]) > order.index(words.get(old.lower(), Severity.OK))


def _short(values: dict[str, dict[str, Value]]) -> dict[str, dict[str, Value]]:
    return {
        place: {k: v[:WORDS_MAX_CHARS] if isinstance(v, str) else v for k, v in names.items()}
        for place, names in values.items()
    }


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


# ---- judging ---------------------------------------------------------------------------------------------------------


def _judge(name: str, words: dict[str, Severity], whose: str) -> Callable[[CheckLook], CheckOutcome]:
    """Judge the word that it has for each GPU; the node's word only sums up what is said of GPUs."""

    def judge(look: CheckLook) -> CheckOutcome:
        places = look.facts.places_with(name)
        if not places:
            return CheckOutcome("-", "none", unknown="dcgmi does not say")
        found: list[Finding] = []
        for place in sorted(places, key=lambda one: one == NODE):
            word = str(look.facts.get(place, name))
            severity = words.get(word.lower(), Severity.OK)
            if severity is Severity.OK or (place == NODE and found):
                continue
            told = f"DCGM's {whose}: {look.facts.get(place, 'words') or word}"
            sentence = told if place == NODE else f"{place}: {told}"
            one = look.found(severity, place, sentence, word)
            found.append(replace(one, scope=Scope.NODE, cause=CauseClass.EITHER) if place == NODE else one)
        gpus_count = sum(place != NODE for place in places)
        return CheckOutcome(f"{gpus_count or 'all'} seen, {len(found)} bad", "none bad", tuple(found))

    return judge


DCGM = CheckSubject(Scope.GPU, CauseClass.HARDWARE, Needs.ADMIN, Sticky.BOOT, beside=_others)
judge_health = _judge("health", HEALTH_WORDS, "watches found a fault")
judge_test = _judge("test", TEST_WORDS, "test found a fault")
FAMILY = CheckFamily(
    NAME, WITHIN_S + 2.0, read, (Check("dcgm_health", NAME, "DCGM's watches saw nothing", judge_health, 300.0, DCGM),)
)
TEST_FAMILY = CheckFamily(
    TEST_NAME,
    TEST_WITHIN_S + 2.0,
    read_test,
    (Check("dcgm_test", TEST_NAME, "DCGM's own test passes", judge_test, 3600.0, DCGM),),
)
DEEP_TEST_FAMILY = CheckFamily(TEST_NAME, DEEP_TEST_WITHIN_S + 2.0, read_deep_test, TEST_FAMILY.checks)


def short_test(left_s: float) -> CheckFamily:
    """The same where there is only so much time."""
    within_s = min(TEST_WITHIN_S, left_s)
    return CheckFamily(TEST_NAME, within_s + 2.0, lambda around: _tested(around, within_s), TEST_FAMILY.checks)
