"""NVML's numbers and what they mean: return codes, fields, how values are coded."""

from __future__ import annotations

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, TIMEOUT, FUNCTION_NOT_FOUND = 3, 4, 6, 10, 13
INVALID_ARGUMENT, CORRUPTED_INFOROM, GPU_IS_LOST, RESET_REQUIRED = 2, 14, 15, 16
ARGUMENT_VERSION_MISMATCH, UNKNOWN = 25, 999
BINDING_TOO_OLD = -1  # none of NVML's: nvidia-ml-py itself does not know the question
NEVER_SAID = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, BINDING_TOO_OLD})  # of this card, driver or binding
UNKNOWN_WORDS = {
    NOT_SUPPORTED: "this GPU does not measure it",
    NO_PERMISSION: "users may not read it here",
    NOT_FOUND: "this GPU has none",
    TIMEOUT: "the driver did not answer in time",
    FUNCTION_NOT_FOUND: "this driver is too old to say",
    INVALID_ARGUMENT: "this driver does not know the question",
    ARGUMENT_VERSION_MISMATCH: "this driver does not know the question",
    BINDING_TOO_OLD: "the installed nvidia-ml-py is too old to ask",
}
LOST_WORDS = {
    GPU_IS_LOST: "it fell off the bus or does not answer any more",
    RESET_REQUIRED: "it waits for a reset",
    CORRUPTED_INFOROM: "its info ROM is corrupted",
}

RETIREMENT_CAUSES = (0, 1)  # many single-bit errors, one double-bit error
VALUE_TYPES = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
LINK5_FIELDS = (
    ("malformed_packets", 206),
    ("buffer_overruns", 207),
    ("receive_errors", 208),
    ("remote_errors", 209),
    ("general_errors", 210),
    ("integrity_errors", 211),
    ("discards", 212),
    ("recoveries_failed", 214),
    ("recoveries", 215),
    ("effective_ber", 220),
    ("symbol_errors", 221),
    ("symbol_ber", 222),
)
ERROR_RATES = frozenset({"effective_ber", "symbol_ber"})


def error_rate(name: str, coded: int) -> dict[str, float]:
    """A share of bits as NVML codes it: four bits times ten to the minus of the lowest eight. One or more is none."""
    mantissa, exponent = coded >> 8 & 0xF, coded & 0xFF
    rate = float(f"{mantissa}e-{exponent}")
    return {name: rate} if rate < 1 else {}
