"""Sends messages through apprise, which alone knows what an address means: Slack, mail, ntfy and a hundred others.

An address holds a token. So nothing here says, logs or raises one: a service is named by its number and its scheme.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
import warnings
from collections.abc import Sequence
from typing import Any

SEND_WITHIN_S = 20.0


def is_installed() -> bool:
    """Can messages be sent from this Python?"""
    return importlib.util.find_spec("apprise") is not None


class Services:
    """The services behind these addresses."""

    def __init__(self, addresses: Sequence[str]) -> None:
        log = logging.getLogger("apprise")  # its lines hold addresses
        log.addHandler(logging.NullHandler())
        log.propagate = False
        self._names = [f"service {k} ({one.partition('://')[0]})" for k, one in enumerate(addresses, 1)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said by what it loads, about itself
            import apprise  # noqa: PLC0415 - optional, and slow to load

            self._found: list[Any] = [apprise.Apprise.instantiate(one, suppress_exceptions=True) for one in addresses]

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of those whose address apprise does not understand."""
        return tuple(name for name, one in zip(self._names, self._found, strict=True) if one is None)

    def send(self, k: int, title: str, body: str, kind: str) -> str:
        """One message to service ``k``; "" if the service took it, else why not. Takes ``SEND_WITHIN_S`` at most.

        ``kind``: info, success, warning or failure.
        """
        service, name = self._found[k], self._names[k]
        if service is None:
            return f"apprise does not understand the address of {name}"
        answer: list[str] = []

        def work() -> None:
            try:
                taken = service.notify(body=body, title=title, notify_type=kind)
                answer.append("" if taken else f"{name} did not take the message")
            except Exception as error:  # noqa: BLE001 - a plugin of a hundred; its words may hold the address
                answer.append(f"{name} failed with {type(error).__name__}")

        thread = threading.Thread(target=work, name="notify", daemon=True)
        thread.start()
        thread.join(SEND_WITHIN_S)
        return answer[0] if answer else f"{name} did not answer within {SEND_WITHIN_S:g} s"
