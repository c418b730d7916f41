"""The step that a rank prints, for scripts that do not call ``gangrun.step``.

A line counts if it holds a counter (``step 120/1000``, ``iteration  120/ 500000 |``, ``global_step=120``) or a progress
bar (``120/267 [00:10<00:12``; with ``Epoch 3`` before it, the bars before it count too). Words that tell of anything
but training, such as ``Loading`` or ``eval``, must not stand before it. A counter is believed once it has grown
``GROWN_COUNT`` times in this attempt; a value that falls or stays changes nothing. Whether the step is above those of
earlier attempts is for the core to say.

Every line of every rank passes here, so most are dismissed by two searches for a few bytes.
"""

from __future__ import annotations

import re

GROWN_COUNT = 3
LINE_MAX_BYTES = 400  # what stands farther on is not a step
_OF_A_BAR = ord("<")  # between the time it took and the time left
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_COUNTER = re.compile(  # begins with letters, which the search skips to
    rb"([SsIi](?:tep|ter(?:ation)?))(?:['\"]?\s*[:=]\s*|\s+|\s*\[\s*)(\d{1,9})(?![\d.]*\d|\w)"
)
_INSIDE_A_NAME = re.compile(rb"(?<![Gg]lobal[ _])(?<![Gg]lobal)(?<=[A-Za-z_])")
_BAR = re.compile(rb"(\d{1,9})/(\d{1,9}) \[\d+:\d\d(?::\d\d)?<")
_EPOCH = re.compile(rb"[Ee]poch[ =:]*\[?(\d{1,6})")
_NO_TRAINING = re.compile(
    rb"(?i)load|download|fetch|extract|map\b|mapping|tokeniz|filter|shard|eval|valid|test|predict|infer|generat|sampl"
    rb"|sav(e|ing)|verif|process|pack|resum|restor|warm.?up|compil|profil|per step|every"
)
_LOSS = re.compile(rb"(?i)loss\w*['\"]?\s*[:=]?\s*(-?\d+(?:\.\d*)?(?:e[-+]?\d+)?)")


class LogSteps:
    """What one rank has printed of its steps in this attempt."""

    __slots__ = ("_bar", "_counter", "_line")

    def __init__(self) -> None:
        self._counter = self._bar = (-1, 0)  # highest value, how often it grew
        self._line = b""  # the newest in which either grew

    def read(self, line: bytes) -> None:
        """One line, without its newline."""
        if _OF_A_BAR not in line and (b"te" not in line or (b"tep" not in line and b"ter" not in line)):
            return
        line = line[:LINE_MAX_BYTES]
        if b"\x1b" in line:
            line = _COLOUR.sub(b"", line)
        found = next((one for one in _COUNTER.finditer(line) if not _INSIDE_A_NAME.match(line, one.start())), None)
        if found:
            self._counter = self._grown(self._counter, int(found[2]), line, found.start())
        elif found := _BAR.search(line):
            done, total = int(found[1]), int(found[2])
            epoch = _EPOCH.search(line, 0, found.start())
            self._bar = self._grown(self._bar, done + total * int(epoch[1]) if epoch else done, line, found.start())

    def _grown(self, seen: tuple[int, int], value: int, line: bytes, start: int) -> tuple[int, int]:
        if value <= seen[0] or _NO_TRAINING.search(line, 0, start):
            return seen
        self._line = line
        return value, seen[1] + 1

    @property
    def step(self) -> int:
        """The highest step that is believed, of a counter rather than of a bar; -1: none."""
        return next((value for value, grown in (self._counter, self._bar) if grown > GROWN_COUNT), -1)

    @property
    def loss(self) -> float | None:
        """What the newest line with a step says of the loss."""
        found = _LOSS.search(self._line)
        return float(found[1]) if found and self.step >= 0 else None
