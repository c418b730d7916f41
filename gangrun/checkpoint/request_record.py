"""Keeps an explicit resume request true beyond the attempt it was made for.

After ``--resume 100`` the newer checkpoints that were there must not win when the next attempt asks for the newest one,
and a resume point outside the checkpoint directory must not be forgotten. One small file in the run directory.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from gangrun.checkpoint.scan import MACHINE_FOLDER, StorageUnreadable
from gangrun.checkpoint.verified_before import write_json
from gangrun.core.checkpoints.resume import shown

RECORD_NAME = "resume-request.json"
_SCHEMA = 1
_WORDS = "what an earlier resume request put out of use"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What the newest explicit request of this run still means."""

    ignored: frozenset[tuple[int, str | None]] = frozenset()  # (step, nonce) put out of use
    base_path: str = ""  # the checkpoint it asked for; "" when it asked for the beginning, or nobody asked
    forgotten_best_step: int = -1  # asked for the beginning: best steps up to this one no longer forbid it


def load_record(run_directory: str) -> RequestRecord:
    """The record, empty if nobody asked. Raises ``StorageUnreadable``: guessing could resume what the user refused."""
    path = os.path.join(run_directory, MACHINE_FOLDER, RECORD_NAME)
    try:
        with open(path, "rb") as file:
            body = json.load(file)
        if body["schema"] != _SCHEMA:
            raise ValueError("another version wrote it")
        ignored = frozenset((int(step), None if nonce is None else str(nonce)) for step, nonce in body["ignored"])
        return RequestRecord(ignored, str(body["base_path"]), int(body["forgotten_best_step"]))
    except FileNotFoundError:
        return RequestRecord()
    except OSError as error:
        raise StorageUnreadable(
            f"{_WORDS} cannot be read from {shown(path)} ({os.strerror(error.errno or 0)})"
        ) from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise StorageUnreadable(f"{_WORDS} cannot be read from {shown(path)}: its content is damaged") from None


def save_record(run_directory: str, record: RequestRecord) -> None:
    """Write the record before anything is done by it; raises ``StorageUnreadable`` if it cannot be kept."""
    body = {
        "schema": _SCHEMA,
        "ignored": sorted(([step, nonce] for step, nonce in record.ignored), key=str),
        "base_path": record.base_path,
        "forgotten_best_step": record.forgotten_best_step,
    }
    folder = os.path.join(run_directory, MACHINE_FOLDER)
    try:
        write_json(folder, RECORD_NAME, body)
    except OSError as error:
        raise StorageUnreadable(
            f"the resume request cannot be kept in {shown(folder)} ({os.strerror(error.errno or 0)})"
        ) from None
