"""Questions that may never be answered, each put to a child with a deadline.

A child that the kernel holds (a dead file server, a sick driver) cannot even be killed. It is left behind, and until it
is gone the same question is not asked again; no two children ask anything at once. The child answers with one line of
JSON; whatever it says is handed on as it is.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any

ANSWER_MAX_CHARS = 4_000_000
WORDS_MAX_CHARS = 200


class ProbeChildren:
    """Asks by starting ``[*command, kind, *words]``."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = tuple(command)
        self._environment = dict(environment)
        self._left: dict[tuple[str, ...], subprocess.Popen[str]] = {}
        self._one_at_a_time = threading.Lock()

    @property
    def left_count(self) -> int:
        """Children that did not end when they were killed, and are still there."""
        return sum(child.poll() is None for child in self._left.values())

    def ask(self, kind: str, words: tuple[str, ...], within_s: float) -> Any:
        """The child's answer as parsed JSON; ``{"absent": why}`` where there is none."""
        with self._one_at_a_time:
            return self._ask((kind, *words), within_s)

    def _ask(self, question: tuple[str, ...], within_s: float) -> Any:
        earlier = self._left.get(question)
        if earlier is not None and earlier.poll() is None:
            return {"absent": f"process {earlier.pid}, asked earlier, still hangs in the kernel; no second one is sent"}
        self._left.pop(question, None)
        try:
            child = subprocess.Popen(
                [*self._command, *question],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            return {"absent": f"no process could be started to ask: {error.strerror}"}
        try:
            said, complained = child.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            return {"absent": f"no answer within {within_s:g} s{self._leave(question, child)}"}
        return _parsed(said, complained, child.returncode)

    def _leave(self, question: tuple[str, ...], child: subprocess.Popen[str]) -> str:
        """Kill it, and do not wait for what may not come."""
        child.kill()
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        try:
            child.wait(0.5)
        except subprocess.TimeoutExpired:
            self._left[question] = child
            return f", and process {child.pid} cannot be killed"
        return ""


def _parsed(said: str, complained: str, code: int) -> Any:
    if code != 0:
        lines = complained.strip().splitlines()
        last = lines[-1][:WORDS_MAX_CHARS] if lines else ""
        how = f"ended with {code}" if code > 0 else f"was killed by signal {-code}"
        return {"absent": f"the process that asked {how}" + (f": {last}" if last else "")}
    try:
        return json.loads(said[:ANSWER_MAX_CHARS])
    except (ValueError, RecursionError):
        return {"absent": "the answer made no sense"}
