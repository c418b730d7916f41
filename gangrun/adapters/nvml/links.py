"""What GPUs say of their NVLinks, one by one, and of the fabric between them."""

from __future__ import annotations

from gangrun.adapters.nvml import library
from gangrun.adapters.nvml.codes import ERROR_RATES, LINK5_FIELDS, LOST_WORDS, NOT_SUPPORTED, error_rate
from gangrun.adapters.nvml.library import Handle, Refused
from gangrun.adapters.nvml.reading import Getter, LinkGetter, Plain

LINKS_MAX_COUNT = 36
LINKS_COUNT_FIELD, SPEED_FIELD = 91, 164


def links_count(gpu: Handle) -> int:
    """As it differs from card to card; no answer: no links."""
    try:
        return min(LINKS_MAX_COUNT, max(0, int(library.field(gpu, LINKS_COUNT_FIELD))))
    except Refused as why:
        if why.code in LOST_WORDS:
            raise
        return 0


def _fabric(gpu: Handle) -> Plain:
    """In the newest form that this driver knows; the older one has a mask of what is wrong, and no summary."""
    forms = ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t")
    info = library.filled("nvmlDeviceGetGpuFabricInfoV", gpu, *forms)
    known = {"fabric_state": info.state, "fabric_status": info.status, "fabric_mask": info.healthMask}
    return known | ({"fabric_summary": info.healthSummary} if hasattr(info, "healthSummary") else {})


def _error(name: str, counter: int) -> tuple[str, LinkGetter]:
    return name, lambda gpu, link: {name: library.ask("nvmlDeviceGetNvLinkErrorCounter", gpu, link, counter)}


def _speed(gpu: Handle, link: int) -> Plain:
    [answer] = library.fields(gpu, [(SPEED_FIELD, link)])
    if isinstance(answer, Refused):
        raise answer
    return {"speed_mbps": answer}


def _link5(gpu: Handle, link: int) -> Plain:
    """Links of the fifth generation: fields whose scope is the link. Some drivers know only some of them."""
    answers = library.fields(gpu, [(field, link) for _, field in LINK5_FIELDS])
    found: Plain = {}
    for (name, _), value in zip(LINK5_FIELDS, answers, strict=True):
        if not isinstance(value, Refused):
            found |= {name: value} if name not in ERROR_RATES else error_rate(name, int(value))
    if not found:
        raise next((why for why in answers if isinstance(why, Refused)), Refused(NOT_SUPPORTED))
    return found


GETTERS: tuple[tuple[str, Getter], ...] = (("fabric_state", _fabric),)
LINK_GETTERS: tuple[tuple[str, LinkGetter], ...] = (
    ("active", lambda gpu, link: {"active": library.ask("nvmlDeviceGetNvLinkState", gpu, link)}),
    _error("replay", 0),
    _error("recovery", 1),
    _error("crc", 2),
    _error("crc_data", 3),
    _error("ecc", 4),
    ("speed_mbps", _speed),
    ("recoveries", _link5),
)
