"""Checks that are data: how each kind of row measures and tells; every row of the list on both sides of its limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangrun.health.active.devices import STARTS, WRONG_SUM, WRONG_WORDS
from gangrun.health.catalogue import CHECKS
from gangrun.health.framework.bounds import (
    COUNTED,
    Bound,
    BoundMeasure,
    Breaks,
    Limit,
    Rows,
    ShareOf,
    ShareOfPeers,
    measured,
    number_of,
    words_of,
)
from gangrun.health.framework.check import (
    FAIL,
    FIRST_LOOK,
    WARN,
    Check,
    CheckLook,
    CheckSubject,
    CheckVerdict,
    HealthPolicy,
    Reading,
    Severity,
    judged,
)
from gangrun.health.gpu import nvlink
from gangrun.health.gpu.nvlink import LINK
from gangrun.health.network.ports import RATE, TWICE, UP_AT
from tests.health.looks import POLICY, reading

Values = dict[str, dict[str, Any]]
OF = BoundMeasure
ONE = Bound("heat_c", 60, WARN, "heat", "Look at {name}")
ABOUT = replace(CHECKS[0].about, places=lambda look, name: look.facts.places_with(name), why_not=lambda _, __: "silent",
                part_of=None, beside=lambda look: frozenset())  # fmt: skip


def told(
    rows: Rows, *looks: Values, about: CheckSubject = ABOUT, every_s: float = 60.0, boot: str = "b"
) -> CheckVerdict:
    """The verdict on the last of these looks, of which the one before was in the same boot."""
    readings = [reading(values, every_s * (n + 1), boot if n == 0 else "b") for n, values in enumerate(looks)]
    return judged(Check("one", "f", "asks", rows, about=about), readings[-1], ([None, *readings])[-2], POLICY)


def row(bound: Bound, **more: Any) -> Rows:
    return Rows((bound,), "limit", "{most}", **more)


def grows(measure: BoundMeasure, limit: Limit, **more: Any) -> Bound:
    return Bound("errors", limit, FAIL, "errors", "", measure, **more)


def counts(*looks: int | tuple[int, ...]) -> list[Values]:
    """Errors at place a, or at a, b and c, look by look."""
    each = [(one,) if isinstance(one, int) else one for one in looks]
    return [{place: {"errors": count} for place, count in zip("abc", one, strict=False)} for one in each]


def speeds(*mhz: float, kind: str = "y") -> list[Values]:
    """The first is of this kind, the others are of kind y."""
    return [{p: {"speed_mhz": v, "kind": kind if p == "a" else "y"} for p, v in zip("abc", mhz, strict=False)}]


ROSE = "a: errors rose from 3 to 5 in 60 s"
BESIDE = ShareOfPeers(10.0, usual_min=1.0)
FASTEST = ShareOfPeers(1.0, least_count=1, most=True)
PEERS = Bound("speed_mhz", ShareOfPeers(0.9, "kind"), WARN, "speed", breaks=Breaks.BELOW)
TWO = replace(ONE, twice=True, means="")


@pytest.mark.parametrize(
    ("bound", "looks", "sentence"),
    [
        (ONE, [{"gpu 0": {"heat_c": 60}}], None),
        (ONE, [{"gpu 0": {"heat_c": 61, "name": "it"}}], "gpu 0: heat is 61 °C (limit 60 °C). Look at it"),
        (ONE, [{"gpu 0": {"heat_c": 61}}], "gpu 0: heat is 61 °C (limit 60 °C)"),  # what was not measured is not told
        (ONE, [{"node": {"heat_c": 61}}], "heat is 61 °C (limit 60 °C)"),
        (replace(ONE, breaks=Breaks.AT_LEAST), [{"a": {"heat_c": 60}}], "a: heat is 60 °C (limit: below 60 °C)"),
        (replace(ONE, breaks=Breaks.BELOW), [{"a": {"heat_c": 59}}], "a: heat is 59 °C (limit: at least 60 °C)"),
        (replace(ONE, limit="memory_temperature_c"), [{"a": {"heat_c": 96}}], "a: heat is 96 °C (limit 95 °C)"),
        (replace(ONE, where=lambda now, place: place != "a"), [{"a": {"heat_c": 61}, "b": {"heat_c": 9}}], None),
        (replace(ONE, limit=ShareOf("most_c", 0.5)), [{"a": {"heat_c": 46, "most_c": 90}}],
         "a: heat is 46 °C (limit 45 °C)"),
        (replace(ONE, limit=ShareOf("most_c")), [{"a": {"heat_c": 46}, "b": {"heat_c": 1, "most_c": 2}}], None),
        (replace(ONE, measure=OF.FLAG, says="it is hot"), [{"a": {"heat_c": 61}}], "a: it is hot"),
        (replace(ONE, measure=OF.FLAG, breaks=Breaks.EQUAL), [{"a": {"heat_c": 59}}], None),
        (replace(ONE, measure=OF.FLAG, breaks=Breaks.OTHER, means=""), [{"a": {"heat_c": 59}}], "a: heat"),
        (Bound("lost", 0, WARN, "no answer", measure=OF.WORD), [{"a": {"lost": "it fell"}}], "a: no answer: it fell"),
        (Bound("says", 0, WARN, "it says", measure=OF.WORD, good="fine"), [{"a": {"says": "fine"}}], None),
        (TWO, [{"a": {"heat_c": 62}}, {"a": {"heat_c": 61}}], "a: heat is 61 °C, and was 62 °C 60 s ago (limit 60 °C)"),
        (TWO, [{"a": {"heat_c": 60}}, {"a": {"heat_c": 61}}], None),
        (TWO, [{"a": {"heat_c": 62, "uuid": "x"}}, {"a": {"heat_c": 61, "uuid": "y"}}], None),
        (TWO, [{"a": {"heat_c": 61}}], None),
        (grows(OF.GROWTH, 0), counts(3, 3), None),
        (grows(OF.GROWTH, 0), counts(3, 5), f"{ROSE} and should not rise at all"),
        (grows(OF.GROWTH, 1), counts(3, 5), f"{ROSE} (limit 1)"),
        (grows(OF.RATE, 2, per_s=60.0), counts(3, 5), None),
        (grows(OF.RATE, 1, per_s=60.0), counts(3, 5), f"{ROSE} (limit 1 per minute)"),
        (grows(OF.RATE, 1, per_s=60.0, least_s=120.0), counts(3, 5), None),
        (grows(OF.RATE, 0, breaks=Breaks.AT_LEAST), counts(3, 3), None),
        (grows(OF.SHARE_OF_TIME, 0.1), counts(0, 6 * 10**9), None),
        (grows(OF.SHARE_OF_TIME, 0.1), counts(0, 9 * 10**9), "a: errors for 15 % of the last 60 s (limit 10 %)"),
        (grows(OF.SHARE_OF_TIME, 0.1), counts(0, 10**15), "a: errors for 100 % of the last 60 s (limit 10 %)"),
        (grows(OF.GROWTH, 0, window=True), [{"a": {"errors": 9, "errors then": 2, "errors since": 30.0}}],
         "a: errors rose from 2 to 9 in 30 s and should not rise at all"),
        (PEERS, speeds(8, 10, 10), "a: speed is 8 MHz, and 10 MHz on its peers (limit: at least 9 MHz)"),
        (PEERS, speeds(8, 10), None),
        (PEERS, speeds(8, 10, 10, kind="x"), None),
        (replace(PEERS, limit=FASTEST), speeds(8, 10),
         "a: speed is 8 MHz, and 10 MHz on its peers (limit: at least 10 MHz)"),
        (grows(OF.RATE, BESIDE), counts((0, 0, 0), (601, 0, 0)),
         "a: errors rose from 0 to 601 in 60 s, far more than its peers"),
        (grows(OF.RATE, BESIDE), counts((0, 0, 0), (600, 0, 0)), None),
        (grows(OF.RATE, BESIDE), counts((0, 0, 0), (601, 601, 601)), None),
    ],
)  # fmt: skip
def test_each_kind_of_row(bound: Bound, looks: list[Values], sentence: str | None) -> None:
    verdict = told(row(bound), *looks)
    assert (verdict.words, verdict.severity) == ((sentence, bound.severity) if sentence else ("", Severity.OK))
    assert len(verdict.findings) == (sentence is not None)


TWO_LIMITS = Rows(
    (replace(ONE, limit=70, severity=FAIL), ONE, grows(OF.GROWTH, 0)), "limit", "{bad} of {count}: {range}"
)


def test_which_of_several_broken_bounds_are_told() -> None:
    hot: list[Values] = [
        {"a": {"heat_c": 71, "errors": 0}, "b": {"heat_c": 61}},
        {"a": {"heat_c": 71, "errors": 1}, "b": {"heat_c": 61}},
    ]
    first = told(TWO_LIMITS, *hot)
    assert [(one.place, one.severity, one.evidence.new) for one in first.findings] == [("a", FAIL, 71), ("b", WARN, 61)]
    assert first.shown == "2 of 2: 1 °C to 71 °C"
    each = told(replace(TWO_LIMITS, each=True), *hot)
    assert [(one.place, one.evidence.new) for one in each.findings] == [("a", 71), ("a", 1), ("b", 61)]
    flags = (Bound("x", 0, WARN, "x is on", measure=OF.FLAG), Bound("y", 0, WARN, "y is on", measure=OF.FLAG))
    both = told(
        Rows(flags, "none", "{good} of {count}", joined=True),
        {"a": {"x": 1, "y": 1}, "b": {"x": 0, "y": 1}, "c": {"y": 0}},
    )
    assert ([one.sentence for one in both.findings], both.shown) == (["a: x is on; y is on", "b: y is on"], "1 of 3")


@pytest.mark.parametrize(
    ("rows", "looks", "why"),
    [
        (row(ONE), [{"a": {}}], "silent"),
        (row(grows(OF.GROWTH, 0)), [{"a": {}}], "silent"),
        (row(grows(OF.GROWTH, 0)), [{"a": {"errors": 1}}], FIRST_LOOK),
        (row(ONE, never="they have none"), [{"a": {}}], "silent"),
        (row(replace(ONE, where=lambda *_: False), nobody="none at work"), [{"a": {"heat_c": 9}}], "none at work"),
        (row(replace(ONE, where=lambda *_: False)), [{"a": {"heat_c": 9}}], "silent"),
        (row(PEERS, nobody="too few"), [{"a": {"speed_mhz": 9}}], "too few"),
        (row(ONE, of="other"), [{"a": {"heat_c": 9}}], "silent"),
    ],
)
def test_why_nothing_is_judged(rows: Rows, looks: list[Values], why: str) -> None:
    verdict = told(rows, *looks)
    assert (verdict.severity, verdict.words, verdict.shown) == (Severity.UNKNOWN, why, "-")


def test_parts_of_a_device_are_one_finding_made_of_the_worst() -> None:
    def links(**down: int) -> Values:
        return {f"gpu 1 link {n}": {"active": 1, "errors": count} for n, count in enumerate(down.values())}

    rows = row(grows(OF.GROWTH, 0), each=True)
    one = told(rows, links(a=0, b=0, c=0), links(a=0, b=0, c=7), about=LINK)
    assert [(f.place, f.devices_count) for f in one.findings] == [("gpu 1 link 2", 1)]
    two = told(rows, links(a=0, b=0, c=0), links(a=9, b=0, c=7), about=LINK)
    assert [(f.place, f.devices_count, f.evidence.new) for f in two.findings] == [("gpu 1 links", 2, 9)]
    assert two.words == "gpu 1: errors rose from 0 to 9 in 60 s at worst, on 2 links (0,2) and should not rise at all"
    down = told(nvlink.STATE, {f"gpu 1 link {n}": {"active": int(n > 1)} for n in range(3)}, about=LINK)
    assert (down.words, down.shown) == ("gpu 1: NVLink is down on 2 links (0-1)", "1 of 3 up")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("free_bytes", 9.96e9, "10.0 GB"),
        ("shm_bytes", 64e6, "64 MB"),
        ("probe_s", 0.01, "10 ms"),
        ("used_share", 0.86, "86 %"),
        ("rate", 400, "400 Gb/s"),
        ("effective_ber", 1e-12, "1e-12"),
        ("x", 0.1234, "0.123"),
        ("x", 1e4, "10000"),
    ],
)
def test_the_end_of_a_name_is_its_unit(name: str, value: float, words: str) -> None:
    assert words_of(name, value) == words


# ---- every row of the list -------------------------------------------------------------------------------------------

WINDOWED = ("ecc_corrected", "symbol_error", "link_downed")
SINCE = {f"{name} {what}": at for name in WINDOWED for what, at in (("then", 0), ("since", 940.0))}
GPU = {"uuid": "u", "model": "H", "busy_percent": 99, "processes_count": 1, "processes_pids": "1", "temperature_c": 40,
       "ecc_corrected": 0, "margin_c": 40, **SINCE}  # fmt: skip
PORT = {"device": "d", "state": 4, "phys_state": 5, "link_layer": "InfiniBand", UP_AT: 1000.0, "link_downed": 1,
        **{f"{counter} first grew": 1.0 for counter in TWICE}, **SINCE}  # fmt: skip
BASE: dict[str, tuple[str, dict[str, Any], list[str]]] = {  # family -> the place that is odd, what all have, the others
    "gpu": ("gpu 3", GPU, ["gpu 0", "gpu 1", "gpu 2"]),
    "link": ("gpu 3 link 1", {"active": 1, "speed_mbps": 900, "uuid": "u"}, ["gpu 3 link 0", "gpu 3"]),
    "infiniband": ("d port 4", PORT, ["d port 1", "d port 2", "d port 3"]),
    "ib_peers": ("d port 4", PORT, ["d port 1", "d port 2", "d port 3"]),
}
ROWS = [
    (one, bound)
    for one in CHECKS
    if isinstance(one.judge, Rows)
    for bound in one.judge.bounds
    if bound.reading != "lost"
]
ROWS += [(one, nvlink.DOWN) for one in CHECKS if one.name == "nvlink_state"]
ROWS += [(replace(CHECKS[0], about=ABOUT, judge=row(bound)), bound) for bound in (STARTS, WRONG_SUM, WRONG_WORDS)]
ROWS += [(one, RATE) for one in CHECKS if one.name == "ib_rate"]


def at_value(check: Check, bound: Bound, value: object) -> tuple[Reading, Reading]:
    """Two looks, a minute apart, at a node where one place reads this, and what is wanted besides."""
    place, base, others = (
        BASE["link" if check.about is LINK else check.family] if check.family in BASE else ("a", {}, [])
    )
    usual = 100.0 if isinstance(bound.limit, ShareOfPeers) and bound.measure not in COUNTED else 0
    peers = {"busy_percent": 99} if check.name == "gpu_idle" else {bound.reading: usual}
    is_compared = isinstance(bound.limit, ShareOfPeers) or check.name == "gpu_idle"
    base = base | ({bound.limit.reading: 100.0} if isinstance(bound.limit, ShareOf) else {})
    base |= {"processes_count": 0} if check.name == "gpu_leftovers" else {}
    now: Values = {one: {**base, **(peers if is_compared else {})} for one in others}
    was = value if bound.twice else usual
    then = {**now, place: {**base, bound.reading: was}}
    now[place] = {**base, bound.reading: value}
    return reading(now, 1000.0), reading(then, 940.0)


def limit_at(check: Check, bound: Bound, now: Reading, before: Reading) -> float:
    """The limit at the odd place, in what the reading itself must be to meet it."""
    look = CheckLook(check, now, before, STRICT)
    limit = bound.limit
    if isinstance(limit, ShareOf):
        return number_of(limit.share, STRICT) * 100
    if isinstance(limit, ShareOfPeers):
        if bound.measure in COUNTED:
            return number_of(limit.share, STRICT) * limit.usual_min * 60
        return number_of(limit.share, STRICT) * 100
    of = limit(look, next(iter(now.facts.values))) if callable(limit) else number_of(limit, STRICT)
    if bound.measure is OF.SHARE_OF_TIME:
        return of * 60e9
    return of * max(60.0, bound.least_s) / bound.per_s if bound.measure is OF.RATE else of


STRICT = HealthPolicy(ib_rate_gbps=400.0)


@pytest.mark.parametrize(("check", "bound"), ROWS, ids=lambda one: getattr(one, "name", getattr(one, "reading", "")))
def test_every_row_is_broken_beyond_its_limit_and_not_before(check: Check, bound: Bound) -> None:
    def is_broken(value: object) -> bool:
        now, before = at_value(check, bound, value)
        look = CheckLook(check, now, before, STRICT)
        odd = list(now.facts.values)[-1]
        found = any(one.place == odd and one.is_broken for one in measured(look, bound))
        verdict = judged(replace(check, judge=row(bound)), now, before, STRICT)
        assert found == any((one.place, one.severity) == (odd, bound.severity) for one in verdict.findings)
        assert len(verdict.words) < 250
        return found

    if bound.measure is OF.WORD:
        assert (is_broken("it broke"), is_broken(bound.good or "")) == (True, False)
        return
    limit = limit_at(check, bound, *at_value(check, bound, 0))
    step = max(abs(limit) * 1e-6, 1e-300) if bound.measure is not OF.GROWTH else 1
    beyond = {Breaks.ABOVE: limit + step, Breaks.AT_LEAST: limit, Breaks.BELOW: limit - step, Breaks.EQUAL: limit}
    within = {Breaks.ABOVE: limit, Breaks.AT_LEAST: limit - step, Breaks.BELOW: limit, Breaks.EQUAL: limit + 1}
    assert is_broken(beyond.get(bound.breaks, limit + 1)), bound
    assert not is_broken(within.get(bound.breaks, limit)), bound
