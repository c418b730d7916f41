"""Step, total, loss and gradient norm that a rank prints, for scripts that do not call ``gangrun.step``.

A line tells a step if it holds a counter (``step 120/1000``, ``iteration  120/ 500000 |``, ``global_step=120``) or a
progress bar (``120/267 [00:10<00:12``). With ``Epoch 3`` before ``120/267``, the counts of the epochs before are added.
Words that tell of anything but training, such as ``Loading`` or ``eval``, must not stand before it. A counter is
believed once it has grown ``GROWN_COUNT`` times in this attempt; a value that falls or stays changes nothing. Whether
the step is above those of earlier attempts is for the core to say.

The loss stands beside a step or in a line of its own (``{'loss': 2.31, 'epoch': 0.1}``); the newest one counts, and the
loss of an evaluation does not. NaN is a loss too: it is what people need to see. A gradient norm is read in
the loss's own line only.

Every line of every rank passes here, so most are dismissed by three searches for a few bytes.
"""

from __future__ import annotations

import re
from collections import deque
from typing import NamedTuple

GROWN_COUNT = 3
LOSSES_MAX_COUNT = 4096
LINE_MAX_BYTES = 400  # what stands farther on is neither step nor loss
_has_loss, _has_counter = re.compile(rb"oss").search, re.compile(rb"te[pr]").search  # twice as fast as ``in``
_OF_A_BAR, _OF_A_RICH_BAR = ord("<"), 0xE2  # between the time it took and the time left
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_COUNTER = re.compile(  # begins with letters, which the search skips to
    rb"([SsIi](?:tep|ter(?:ation)?))(?:['\"]?\s*[:=]\s*|\s+|\s*\[\s*)(\d{1,9})(?![\d.]*\d|\w)"
    rb"(?:\s*/\s*(\d{1,9})(?![\d.]*\d|\w))?"
)
_INSIDE_A_NAME = re.compile(rb"(?<![Gg]lobal[ _])(?<![Gg]lobal)(?<=[A-Za-z_])")
_BAR = re.compile(rb"(\d{1,9})/(\d{1,9}) (?:\[\d+:\d\d(?::\d\d)?<|\d+:\d\d:\d\d \xe2\x80\xa2 )")  # tqdm's, rich's
_EPOCH = re.compile(rb"[Ee]poch[ =:]*\[?(\d{1,6})(?:\s*/\s*(\d{1,6}))?")
_NO_TRAINING = re.compile(
    rb"(?i)load|download|fetch|extract|map\b|mapping|tokeniz|filter|shard|eval|valid|test|predict|infer|generat|sampl"
    rb"|sav(e|ing)|verif|process|pack|resum|restor|warm.?up|compil|profil|per step|every"
)
_LOSS = re.compile(  # matched where the word stands
    rb"(?<![Vv]al[_ /.])(?<![Vv]alid[_ /.])(?<!validation[_ /.])(?<!Validation[_ /.])(?<![Tt]est[_ /.])"
    rb"[Ll]oss(?!\w*scal)[\w/.]*['\"]?(\s*[:=]\s*|\s+)(?:tensor\()?['\"]?"
    rb"([-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|(?:[nN]a[nN]|[iI]nf)\b))(?![\d.]*\s?%)"
)
_NORM = re.compile(
    rb"(?<![A-Za-z])[Gg](?:rad(?:ient)?)?[_ ]?[Nn]orm['\"]?\s*[:=]\s*(?:tensor\()?['\"]?"
    rb"(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|(?:[nN]a[nN]|[iI]nf)\b)"
)
_SUMMARY = b"train_runtime"  # in the Trainer's last line, where the loss is a mean over all steps


class PrintedLoss(NamedTuple):
    """What one line tells."""

    step: int  # -1: none is known
    loss: float
    grad_norm: float | None  # None: the line has none


class _Counted:
    """A number that grows from line to line."""

    __slots__ = ("first", "grown_count", "total", "value", "widest")

    def __init__(self) -> None:
        self.value, self.total, self.grown_count = -1, -1, 0
        self.first = -1  # above 0, which a bar that is to be resumed shows too
        self.widest = 0  # how far apart two values were at most

    def take(self, line: bytes, start: int, done: int, total: int) -> bool:
        """Does the line tell of training, and of no step before the newest? ``total`` 0: it names none."""
        epoch = _EPOCH.search(line, 0, start) if total else None
        value = done + total * int(epoch[1]) if epoch else done
        if value < self.value or _NO_TRAINING.search(line, 0, start):
            return False
        if value > self.value:
            self.widest = max(self.widest, value - self.value) if self.grown_count else 0
            self.value = value
            self.first = value if self.first <= 0 else self.first
            self.grown_count += 1
            epochs = int(epoch[2] or 0) + 1 if epoch else 1
            self.total = total * epochs if total and (epoch is None or epochs > 1) else -1
        return True


class LogSteps:
    """What one rank has printed of its steps in this attempt."""

    __slots__ = ("_bar", "_counter", "grad_norm", "loss", "losses")

    def __init__(self) -> None:
        self._counter, self._bar = _Counted(), _Counted()
        self.loss: float | None = None  # the newest that it printed
        self.grad_norm: float | None = None  # the same
        self.losses: deque[PrintedLoss] = deque(maxlen=LOSSES_MAX_COUNT)  # to be taken

    def read(self, line: bytes) -> None:
        """One line, without its newline."""
        tells_loss = _has_loss(line)
        if not (tells_loss or _OF_A_BAR in line or _OF_A_RICH_BAR in line or _has_counter(line)):
            return
        line = line[:LINE_MAX_BYTES]
        if b"\x1b" in line:
            line = _COLOUR.sub(b"", line)
        found = next((one for one in _COUNTER.finditer(line) if not _INSIDE_A_NAME.match(line, one.start())), None)
        if found:
            trains = self._counter.take(line, found.start(), int(found[2]), int(found[3] or 0))
        elif found := _BAR.search(line):
            trains = self._bar.take(line, found.start(), int(found[1]), int(found[2]))
        else:
            trains = True
        if tells_loss and trains:
            self._read_loss(line, alone=not found)

    def _read_loss(self, line: bytes, *, alone: bool) -> None:
        """``alone``: no step is beside it, so that more must show that it is the loss of training."""
        at, found = line.find(b"oss"), None
        while at > 0 and not (found := _LOSS.match(line, at - 1)):
            at = line.find(b"oss", at + 1)
        if found is None:
            return
        if alone and (not found[1].strip() or _NO_TRAINING.search(line, 0, at) or _SUMMARY in line):
            return
        norm = _NORM.search(line)
        told = PrintedLoss(self.step, float(found[2]), float(norm[1]) if norm else None)
        self.loss, self.grad_norm = told.loss, told.grad_norm
        self.losses.append(told)

    @property
    def _believed(self) -> _Counted | None:
        """A counter rather than a bar."""
        return next((one for one in (self._counter, self._bar) if one.grown_count > GROWN_COUNT), None)

    @property
    def step(self) -> int:
        """The highest step that is believed; -1: none."""
        return self._believed.value if self._believed else -1

    @property
    def first(self) -> int:
        """The first step above 0 that a counter told; -1: none. A bar may be of what comes before the training."""
        return self._counter.first if self._believed is self._counter else -1

    @property
    def reach(self) -> int:
        """The step before which the next line would have come: the rank has not done more than this; -1: no step."""
        return self._believed.value + self._believed.widest if self._believed else -1

    @property
    def total(self) -> int:
        """How many steps there are in all, as the same lines tell; -1: they do not."""
        return self._believed.total if self._believed else -1
