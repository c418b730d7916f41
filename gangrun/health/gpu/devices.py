"""Are the GPUs there, do they answer, are they set up for training, is their memory whole, and which may this job use?

A child asks NVML (see ``adapters.nvml``); PCI is looked at here. If there is no NVIDIA GPU and none is expected, every
check is unknown, quietly. ``CUDA_VISIBLE_DEVICES`` names the job's GPUs, by number or UUID: the others are looked at
too, but never fail the node. If that leaves a doubt (GPUs of several kinds, which CUDA may number by speed; parts of
GPUs; a number that is not there) all of them count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from gangrun.health.framework.bounds import Bound, BoundMeasure, Breaks, Limit, Rows, ShareOf, one_version
from gangrun.health.framework.check import (
    FAIL,
    WARN,
    CauseClass,
    Check,
    CheckLook,
    CheckOutcome,
    CheckSubject,
    Finding,
    Needs,
    NodeFacts,
    Reading,
    Scope,
    Sticky,
    Value,
    comparable,
    in_window,
    with_windows,
)  # fmt: skip
from gangrun.health.framework.readings import UUID, text_of
from gangrun.health.framework.rounds import HealthSurroundings
from gangrun.health.gpu.xid_table import RECOVERY_ACTIONS

NODE = "node"
CHILD_WITHIN_S = 15.0
NO_GPU = "no NVIDIA GPU here"
NVIDIA, DISPLAY_CLASSES = "0x10de", ("0x0300", "0x0302")
DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, VERSION_MISMATCH = 9, 12, 18
RESET_REQUIRED, CORRUPTED_INFOROM = 16, 14
CHILD_ANSWER = "nvml_answer"
PEOPLE_FROM = 1000  # users below are the system's: its services may look at GPUs
EITHER, EQUAL, FLAG, WORD = CauseClass.EITHER, Breaks.EQUAL, BoundMeasure.FLAG, BoundMeasure.WORD
VISIBLE = "CUDA_VISIBLE_DEVICES"
NOBODY = frozenset({"", "-1", "NoDevFiles"})  # CUDA passes over what follows these; the last one is a scheduler's


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(around: HealthSurroundings) -> NodeFacts:
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
    return NodeFacts({**_with_others(said, around.root), NODE: node}, missing)


def _with_others(said: NodeFacts, root: Path) -> dict[str, Mapping[str, Value]]:
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


def _on_bus(around: HealthSurroundings) -> int | None:
    try:
        devices = list((around.root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return None
    return sum(
        text_of(device / "vendor") == NVIDIA and text_of(device / "class").startswith(DISPLAY_CLASSES)
        for device in devices
    )


# ---- which GPUs there are, and which of them the job may use ---------------------------------------------------------


def gpus_in(facts: NodeFacts) -> tuple[str, ...]:
    """Places of GPUs, in order."""
    return tuple(place for place in facts.values if re.fullmatch(r"gpu \d+", place))


def gpus(look: CheckLook, name: str = "") -> tuple[str, ...]:
    """The same of a look."""
    del name
    return gpus_in(look.facts)


def named(now: Reading) -> dict[str, str]:
    """What each GPU is called by those who have to find it: model, UUID, place on the bus."""
    said = {place: [now.facts.get(place, name) for name in ("model", "uuid", "pci")] for place in gpus_in(now.facts)}
    return {place: ", ".join(str(word) for word in words if word) for place, words in said.items() if any(words)}


def wanted(variables: Mapping[str, str]) -> tuple[str, ...] | None:
    """The GPUs that a job's variables name, by number or UUID; None: they say nothing."""
    if VISIBLE not in variables:
        return None
    found: list[str] = []
    for word in variables[VISIBLE].split(","):
        if word.strip() in NOBODY:
            break
        found.append(word.strip())
    return tuple(found)


def beside(facts: NodeFacts, own: tuple[str, ...] | None) -> frozenset[str]:
    """The places of GPUs that the job may not use; empty if that cannot be told."""
    places = gpus_in(facts)
    if own is None:
        return frozenset()
    if all(word.isascii() and word.isdigit() for word in own):
        used = {f"gpu {int(word)}" for word in own}
        kinds = {facts.get(place, "model") for place in places} - {None}
        certain = used <= set(places) and (len(kinds) < 2 or not own)
        return frozenset(places) - used if certain else frozenset()
    used = set()
    for word in own:
        found = [place for place in places if str(facts.get(place, UUID) or "").startswith(word)]
        if len(found) != 1:
            return frozenset()  # it may be the one that is lost and cannot say its UUID any more
        used.add(found[0])
    return frozenset(places) - used


def own_gpus(facts: NodeFacts, own: tuple[str, ...] | None) -> dict[str, int]:
    """The places of the job's GPUs and the number by which CUDA knows each; empty if that cannot be told."""
    places = gpus_in(facts)
    if len({facts.get(place, "model") for place in places} - {None}) > 1 and not (own and not own[0].isdigit()):
        return {}  # CUDA may number them by speed
    if own is None:
        return {place: number for number, place in enumerate(places)}
    found = {}
    for number, word in enumerate(own):
        named = [
            place
            for place in places
            if (place == f"gpu {int(word)}" if word.isdigit() else str(facts.get(place, UUID) or "").startswith(word))
        ]
        if len(named) == 1:
            found[named[0]] = number
    return found if len(found) == len(own) or not any(word.isdigit() for word in own) else {}


def is_beside(facts: NodeFacts, named_gpus: tuple[str, ...] | None, uuid: str) -> bool:
    """May the job not use this GPU? It may be one that is lost, and cannot say any more that this is its UUID."""
    others = beside(facts, named_gpus)
    own = [facts.get(place, UUID) for place in gpus_in(facts) if place not in others]
    return bool(others and uuid) and None not in own and uuid not in own


def why_not(look: CheckLook, name: str) -> str:
    """Why ``name`` was measured on no GPU."""
    return look.facts.why_missing(name) or "no GPU says" if gpus(look) else _why_none(look)


def _why_none(look: CheckLook) -> str:
    silent = look.facts.missing.get(NODE, {}).get(CHILD_ANSWER)
    if silent:
        return silent
    words = look.facts.get(NODE, "nvml_words")
    return f"NVML does not answer: {words}" if look.number(NODE, "on_bus_count") and words is not None else NO_GPU


def _beside(look: CheckLook) -> frozenset[str]:
    return beside(look.facts, look.policy.gpus_used)


GPU = CheckSubject(Scope.GPU, CauseClass.HARDWARE, Needs.RESET, Sticky.BOOT, gpus, why_not, _beside)


# ---- judging ---------------------------------------------------------------------------------------------------------


def judge_count(look: CheckLook) -> CheckOutcome:
    """As many GPUs as were asked for, or as are on the bus."""
    expected, on_bus = look.policy.gpus_count, look.number(NODE, "on_bus_count")
    error, count = look.number(NODE, "nvml_error"), look.number(NODE, "gpus_count")
    limit = f"= {expected}" if expected is not None else "= on the bus"
    is_fault = error in (DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, VERSION_MISMATCH)
    if expected and not count and on_bus == 0 and error != VERSION_MISMATCH:
        sentence = f"{expected} GPUs are expected, and none is on the bus"
        return CheckOutcome("0 on the bus", limit, (look.found(FAIL, NODE, sentence, 0, expected, Needs.REBOOT),))
    if is_fault and (error == VERSION_MISMATCH or expected or on_bus):
        return CheckOutcome("no answer", limit, (_no_driver(look, mismatch=error == VERSION_MISMATCH),))
    if count is None:
        return CheckOutcome("-", limit, unknown=_why_none(look))
    found: tuple[Finding, ...] = ()
    if expected is not None and count < expected:
        where = f"; {on_bus:.0f} are on the bus" if on_bus is not None else ""
        sentence = f"{count:.0f} GPUs answer instead of {expected}{where}"
        found = (look.found(FAIL, NODE, sentence, count, expected, Needs.REBOOT),)
    elif expected is None and on_bus is not None and count < on_bus:
        sentence = f"{count:.0f} of {on_bus:.0f} GPUs answer: this job was given fewer, or the driver lost some"
        found = (look.found(WARN, NODE, sentence, count, on_bus, Needs.NONE, CauseClass.EITHER),)
    return CheckOutcome(f"{count:.0f}" + (f", {on_bus:.0f} on the bus" if on_bus is not None else ""), limit, found)


def _no_driver(look: CheckLook, *, mismatch: bool) -> Finding:
    words = str(look.facts.get(NODE, "nvml_words"))
    if mismatch:
        sentence = "the driver was updated and the old one still runs (library and kernel module differ): reboot"
        return look.found(FAIL, NODE, sentence, words, needs=Needs.REBOOT, cause=CauseClass.CONFIG)
    sentence = (
        f"{look.number(NODE, 'on_bus_count') or 0:.0f} GPUs are on the bus, but the driver cannot be asked: {words}"
    )
    severity = FAIL if look.policy.gpus_count else WARN
    return look.found(severity, NODE, sentence, words, needs=Needs.ADMIN, cause=CauseClass.CONFIG)


def judge_driver(look: CheckLook) -> CheckOutcome:
    """Are driver library and kernel module of one version?"""
    library, module = look.facts.get(NODE, "driver"), look.facts.get(NODE, "loaded_driver")
    limit = "library = module"
    if library is None:
        return CheckOutcome("-", limit, unknown=why_not(look, "driver"))
    alike = {"GPU driver": str(library)}
    if module is None or str(library) == str(module):
        return CheckOutcome(str(library), limit, alike=alike)
    sentence = f"the driver's library is {library} and its kernel module {module}: a reboot is due after an update"
    one = look.found(WARN, NODE, sentence, library, module, Needs.REBOOT, CauseClass.CONFIG)
    return CheckOutcome(f"{library}, {module}", limit, (one,), alike=alike)


FIRMWARE = (("vbios", "VBIOS"), ("info_rom_version", "info ROM"))


def judge_firmware(look: CheckLook) -> CheckOutcome:
    """Do GPUs of one model carry the same firmware?"""
    kinds: dict[str, dict[str, str]] = {}
    for name, what in FIRMWARE:
        for place in gpus(look):
            if (version := look.facts.get(place, name)) is not None:
                model = look.facts.get(place, "model") or "GPU"
                kinds.setdefault(f"{model} {what}", {})[place] = str(version)
    return one_version(look, kinds, why_not(look, FIRMWARE[0][0]))


def _lost(code: int | None, needs: Needs) -> Bound:
    where = None if code is None else lambda now, place: now.facts.number(place, "lost_code") == code
    return Bound("lost", 0, FAIL, "the GPU does not answer", measure=WORD, where=where, needs=needs)


LOST = (_lost(RESET_REQUIRED, Needs.RESET), _lost(CORRUPTED_INFOROM, Needs.RMA), _lost(None, Needs.REBOOT))
RECOVERY = (  # what the GPU itself asks for: the best single sign there is
    *(
        Bound("recovery_action", action, FAIL if fatal else WARN, f"the GPU asks {words}", "", FLAG, EQUAL, needs=needs)
        for action, (words, fatal, needs) in RECOVERY_ACTIONS.items()
    ),
    Bound("recovery_action", 0, WARN, "the GPU asks for action {recovery_action}, which gangrun does not know", "",
          FLAG, needs=Needs.ADMIN),
)  # fmt: skip


def _mode(name: str, good: Limit, says: str) -> Bound:
    return Bound(name, good, WARN, says, "", FLAG, Breaks.OTHER, needs=Needs.ADMIN, cause=CauseClass.CONFIG)


MODES = (
    _mode("persistence", 1, "persistence mode is off, so each start waits seconds for the driver"),
    _mode("ecc_mode", 1, "ECC is off, so memory errors are not seen"),
    _mode("mig_mode", 0, "the GPU is split into instances (MIG)"),
    _mode("compute_mode", 0, "the compute mode forbids programs to share the GPU"),
    _mode("ecc_mode_pending", ShareOf("ecc_mode"), "a change of the ECC mode waits for a reboot"),
)


def _left(name: str, limit: Limit, says: str, means: str, where: Callable[[Reading, str], bool] | None = None) -> Bound:
    return Bound(name, limit, WARN, says, means, where=where, needs=Needs.ADMIN, cause=EITHER, sticky=Sticky.NO)


LEFTOVERS = (  # of interest before ranks start; later they hold the memory
    _left("others_count", 0, "number of programs of other users", "Two jobs got this GPU, or another user took it"),
    _left("memory_used_bytes", "leftover_bytes", "memory in use although no process is listed",
          "A program that ended left it behind", lambda now, place: now.facts.number(place, "processes_count") == 0),
)  # fmt: skip
CHECKS = (
    Check("gpu_count", "gpu", "all GPUs are there", judge_count, 60.0, GPU),
    Check("gpu_lost", "gpu", "every GPU answers",
          Rows(LOST, "all answer", "{good} of {count} answer"), 15.0, GPU),
    Check("gpu_recovery", "gpu", "no GPU asks for a reset or reboot",
          Rows(RECOVERY, "none", "{bad} of {count} ask for one"), 60.0, GPU),
    Check("gpu_driver", "gpu", "driver library and kernel module fit", judge_driver, 300.0, GPU),
    Check("gpu_modes", "gpu", "GPUs are set up for training",
          Rows(MODES, "ECC on, no MIG", "{good} of {count} as usual", joined=True), 300.0, GPU),
    Check("gpu_leftovers", "gpu", "nobody's memory is left on a GPU",
          Rows(LEFTOVERS, lambda p: f"<= {p.leftover_bytes / 1e9:g} GB of nobody", "{most} used at most",
               of="memory_used_bytes"), 60.0, GPU),
    Check("gpu_firmware", "gpu", "GPUs of one model have one firmware", judge_firmware, 300.0, GPU),
)  # fmt: skip


# ---- memory: ECC counts, SRAM, remapped rows, retired pages, repairs, info ROM ------------------------------------

ECC_WINDOW_S = 600.0
RATES = ("ecc_corrected rate", "ecc_corrected rate before", "ecc_corrected rate before that")
DOUBLING = "ecc_corrected doubling"


def remember(now: Reading, before: Reading | None) -> Reading:
    """Carry on the window of corrected errors, the rates of the last windows, and whether these doubled."""
    now = with_windows(now, before, {"ecc_corrected": ECC_WINDOW_S})
    if before is None or not comparable(now, before):
        return now
    more: dict[str, dict[str, Value]] = {}
    for place in gpus_in(now.facts):
        if now.facts.get(place, UUID) != before.facts.get(place, UUID):
            continue
        rates = [before.facts.number(place, name) for name in RATES]
        over = before.facts.number(place, "ecc_corrected since") != now.facts.number(place, "ecc_corrected since")
        if over and (done := in_window(before, place, "ecc_corrected")) is not None:
            rates = [done.per_s, *rates[:-1]]
        more[place] = {name: rate for name, rate in zip(RATES, rates, strict=True) if rate is not None}
        newest, middle, oldest = (rate or 0.0 for rate in rates)
        if oldest > 0 and middle >= 2 * oldest and newest >= 2 * middle:
            more[place][DOUBLING] = newest * 3600
    return now.with_more(more)


SRAM_PARTS = {
    "sram_l2": "the L2 cache",
    "sram_sm": "the processors",
    "sram_pcie": "PCIe",
    "sram_mcu": "the microcontrollers",
    "sram_other": "other parts",
}


def _sram(look: CheckLook, place: str) -> str:
    counts = [(look.number(place, name) or 0.0, words) for name, words in SRAM_PARTS.items()]
    where = " and ".join(f"{count:.0f} in {words}" for count, words in counts if count)
    return f"{f'They are {where}. ' if where else ''}NVIDIA replaces such GPUs"


ROWS = "{remapped_uncorrected} rows with uncorrected and {remapped_corrected} with corrected errors are remapped"
HIT = "New work may hit it: reset the GPU"
HARMLESS = "This is not harmful yet, but many such errors announce worse ones"


def _waits(reading: str, says: str, means: str = "") -> Bound:
    return Bound(reading, 0, WARN, says, means, FLAG)


ECC = Bound("ecc_uncorrected", 0, FAIL, "number of uncorrectable memory errors since the driver was loaded",
            "The GPU had {ecc_uncorrected_ever} in its whole life", good=0)  # fmt: skip
ECC_GROWTH = Bound(  # it outlives resets: only its growth tells of today
    "ecc_uncorrected_ever", 0, FAIL, "uncorrectable memory errors", measure=BoundMeasure.GROWTH
)
ECC_CORRECTED = (  # two errors in the first second are no rate
    Bound("ecc_corrected", "ecc_corrected_per_hour", WARN, "corrected memory errors", HARMLESS,
          BoundMeasure.RATE, per_s=3600.0, least_s=360.0, window=True, needs=Needs.NONE, sticky=Sticky.CLEAN),
    Bound(DOUBLING, "ecc_growing_per_hour", WARN,
          "number of corrected memory errors in an hour, which doubles every 10 min,", HARMLESS,
          breaks=Breaks.AT_LEAST, needs=Needs.NONE, sticky=Sticky.CLEAN),
)  # fmt: skip
SRAM = (
    Bound("sram_threshold", 0, FAIL,
          "the SRAM had more errors than NVIDIA allows: {sram_uncorrected_ever} uncorrectable ones", _sram, FLAG,
          needs=Needs.RMA, good=0),
    Bound("sram_uncorrected_ever", "sram_uncorrected_max", WARN, "number of uncorrectable SRAM errors in its life",
          _sram, needs=Needs.RMA),
)  # fmt: skip
REMAPPED = (
    Bound("remap_failed", 0, FAIL, "no spare row is left for a memory row that failed", f"{ROWS}. Replace the GPU",
          FLAG, needs=Needs.RMA),
    _waits("remap_pending", "a memory row waits for a reset to be remapped", f"{HIT}. {ROWS}"),
    Bound("remapped_uncorrected", "remapped_rows_max", WARN, "number of memory rows remapped after uncorrected errors",
          "Hardly a spare row is left", breaks=Breaks.AT_LEAST, needs=Needs.RMA),
    Bound("remapped_corrected", "remapped_rows_many", WARN, "number of memory rows remapped after corrected errors",
          "GPUs with so many are often slower than others", needs=Needs.NONE),
)  # fmt: skip
REPAIRS = (
    _waits("channel_repair_pending", "a memory channel waits for a reset to be repaired"),
    _waits("tpc_repair_pending", "a group of processors waits for a reset to be repaired"),
    _waits("bank_remap_pending", "a memory bank waits for a reset to be repaired"),
)
RETIRED = (  # on GPUs before Ampere
    _waits("retired_pending", "a memory page waits for a reset to be retired", HIT),
    Bound("retired_pages", "retired_pages_max", FAIL, "number of retired memory pages", "The GPU is wearing out",
          needs=Needs.RMA),
)  # fmt: skip
INFO_ROM = Bound("info_rom_valid", 1, WARN, "the info ROM is corrupted", "The GPU forgets its errors and remapped rows",
                 FLAG, Breaks.BELOW, needs=Needs.RMA, good=1)  # fmt: skip
EXHAUSTED = Bound("banks_exhausted", 0, WARN, "number of memory banks with few or no spare rows",
                  "The next faults there cannot be repaired", needs=Needs.ADMIN, good=0)  # fmt: skip
MEMORY_CHECKS = (
    Check("gpu_ecc", "gpu", "no uncorrectable memory errors", Rows((ECC,), "0", "{total} uncorrected"), 60.0, GPU),
    Check("gpu_ecc_growth", "gpu", "no new ones since the last look",
          Rows((ECC_GROWTH,), "0 new", "{total} new"), 60.0, GPU),
    Check("gpu_ecc_corrected", "gpu", "corrected memory errors are rare",
          Rows(ECC_CORRECTED, lambda p: f"<= {p.ecc_corrected_per_hour:g}/h", "{total} new"), 60.0, GPU),
    Check("gpu_sram", "gpu", "SRAM errors are below NVIDIA's mark",
          Rows(SRAM, lambda p: f"none marked, <= {p.sram_uncorrected_max} ever", "{total} marked"), 300.0, GPU),
    Check("gpu_remapped", "gpu", "no memory row failed or waits",
          Rows(REMAPPED, "0 failed, 0 pending", "{bad} of {count} in need"), 60.0, GPU),
    Check("gpu_repairs", "gpu", "no GPU waits to repair itself",
          Rows(REPAIRS, "none", "{bad} of {count} wait for one", joined=True,
               never="these GPUs make no such repairs"), 60.0, GPU),
    Check("gpu_info_rom", "gpu", "GPUs' info ROMs are valid",
          Rows((INFO_ROM,), "valid", "{good} of {count} valid"), 300.0, GPU),
    Check("gpu_retired", "gpu", "few memory pages are retired",
          Rows(RETIRED, lambda p: f"<= {p.retired_pages_max}, 0 pending", "{total} pages", of="retired_pages",
               never="these GPUs retire no pages"), 300.0, GPU),
)  # fmt: skip
SPARE_ROWS = Check(
    "gpu_spare_rows", "gpu", "memory banks have spare rows", Rows((EXHAUSTED,), "0 banks", "{total} banks"), 300.0, GPU
)
