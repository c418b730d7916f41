"""What GPUs say of themselves through NVML.

``snapshot`` hands out plain values by place and name, and one word of why for each that is missing: NVML's functions
come and go with drivers and cards, so "not supported", "not permitted" and "not known to this driver" are no faults. A
GPU that is lost, wants a reset or has a corrupted info ROM says so under ``lost``, and is asked no further.
Any call here may hang on a sick driver: run ``snapshot`` in a process of its own. Events: ``events``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from gangrun.adapters.nvml import library, links, memory, running
from gangrun.adapters.nvml.codes import LOST_WORDS, NEVER_SAID, UNKNOWN_WORDS
from gangrun.adapters.nvml.library import Refused
from gangrun.adapters.nvml.reading import Getter, Plain, of_field, once, worded

Question = Callable[[], Plain]

SILENT_LINKS_COUNT = 2  # so many links of a GPU that are up and cannot say it, and its others are not asked

NODE_GETTERS: tuple[tuple[str, Question], ...] = (
    ("gpus_count", lambda: {"gpus_count": library.count()}),
    ("driver", lambda: {"driver": library.text("nvmlSystemGetDriverVersion")}),
)
GPU_GETTERS: tuple[tuple[str, Getter], ...] = (
    worded("uuid", "nvmlDeviceGetUUID"),
    worded("model", "nvmlDeviceGetName"),
    ("pci", lambda gpu: {"pci": library.words(library.ask("nvmlDeviceGetPciInfo", gpu).busId)}),
    once(*worded("vbios", "nvmlDeviceGetVbiosVersion")),
    once(*worded("info_rom_version", "nvmlDeviceGetInforomImageVersion")),
    of_field("recovery_action", 230),
    *memory.GETTERS,
    *running.GETTERS,
    *links.GETTERS,
)


def snapshot() -> Plain:
    """Every value of every GPU that this user can see. Raises nothing that NVML raises."""
    try:
        library.start()
    except Refused as why:
        return {"values": {"node": {"nvml_error": why.code, "nvml_words": str(why)}}}
    try:
        return _all()
    finally:
        library.stop()


def seen() -> list[tuple[str, str]]:
    """UUID and model of each GPU that this user can see, in NVML's order; none where one of them cannot say."""
    try:
        library.start()
        handles = [library.handle(index) for index in range(library.count())]
        return [(library.text("nvmlDeviceGetUUID", one), library.text("nvmlDeviceGetName", one)) for one in handles]
    except Refused:
        return []


def _all() -> Plain:
    values: dict[str, Plain] = {"node": {}}
    missing: dict[str, Plain] = {"node": {}}
    for name, question in NODE_GETTERS:
        try:
            values["node"] |= question()
        except Refused as why:
            missing["node"][name] = _words(why)
    for index in range(int(values["node"].get("gpus_count", 0))):
        place = f"gpu {index}"
        values[place], missing[place] = {}, {}
        said, silent = set[str](), Counter[str]()
        try:
            for where, name, question in _questions(index, place):
                if name not in said and silent[name] >= SILENT_LINKS_COUNT:
                    continue
                try:
                    values.setdefault(where, {}).update(question())
                    said.add(name)
                except Refused as why:
                    if why.code in LOST_WORDS:
                        raise
                    missing.setdefault(where, {})[name] = _words(why)
                    silent[name] += why.code in NEVER_SAID and values.get(where, {}).get("active") == 1
        except Refused as lost:  # or no handle: the driver counts a GPU that it cannot reach
            values[place] |= {"lost": LOST_WORDS.get(lost.code, str(lost)), "lost_code": lost.code}
    return {"values": values, "missing": missing}


def _questions(index: int, place: str) -> Iterator[tuple[str, str, Question]]:
    """Every question about one GPU: (place, name, what to ask)."""
    gpu = library.handle(index)
    for name, getter in GPU_GETTERS:
        yield place, name, partial(getter, gpu)
    for link in range(links.links_count(gpu)):
        for name, of_link in links.LINK_GETTERS:
            yield f"{place} link {link}", name, partial(of_link, gpu, link)


def _words(why: Refused) -> str:
    return UNKNOWN_WORDS.get(why.code, f"NVML error {why.code}: {why}")
