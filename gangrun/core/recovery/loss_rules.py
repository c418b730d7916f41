"""Is something wrong with the loss or the gradient norm that a rank reports? Four rules over its last reports.

    not finite   the loss is NaN or infinite, in one report; a gradient norm in ``NORM_NOT_FINITE_COUNT`` running, as a
                 loss scaler of fp16 makes some by design and leaves those steps out
    blow-up      the loss is far above the median of the window, by the window's own spread, ``ALERT_COUNT`` running:
                 one hard batch is no blow-up
    gradient     the norm is over ``NORM_FACTOR`` times its mean over the window, ``NORM_ALERT_COUNT`` running
    flat         the loss was the same number, to the last bit, ``FLAT_COUNT`` running

Bad reports do not enter the window, so what is usual stays what it was before. A stretch of bad reports ends after
``CALM_COUNT`` good ones: NaN at every second step is one anomaly. It is *lasting* from ``LASTING_COUNT`` bad reports
running on (``NOT_FINITE_LASTING_COUNT`` of a loss that is no number); only what lasts is a reason to act. A flat loss
never is: somebody must look at it.

An attempt that resumes takes over what was usual up to its resume point. Else a batch that blows the loss up soon after
a rollback would be what is usual from then on.

The agent runs these rules over each report of its own ranks, so that no step between two heartbeats is missed, and the
supervisor hears the outcome alone. The bounds are worked out anew every ``BOUNDS_EVERY_COUNT`` reports: a report costs
a few microseconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gangrun.core.evidence import LOSS, NORM, Anomaly, AnomalyKind
from gangrun.core.text import json_number

WINDOW_COUNT = 200
KNOWN_MIN_COUNT = 50  # reports before anything counts as usual
BOUNDS_EVERY_COUNT = 20
Z_MAX = 10.0
MAD_TO_SIGMA = 1.4826  # of a normal distribution
SPREAD_MIN_SHARE = 0.02  # of the median: a loss that hardly moves has no blow-up in its last digits
ALERT_COUNT = 5
LASTING_COUNT = 20
NORM_FACTOR = 10.0
NORM_ALERT_COUNT = 3
NORM_NOT_FINITE_COUNT = 20
NOT_FINITE_LASTING_COUNT = 3
FLAT_COUNT = 500
CALM_COUNT = 50


def number_words(value: float) -> str:
    """Five digits; ``NaN`` and the infinities as JSON's words have them."""
    return f"{value:.5g}" if math.isfinite(value) else str(json_number(value))


NEVER = 2**62


@dataclass(slots=True)
class _Stretch:
    """Bad reports of one kind: the stretch that runs now, and the newest one that was told."""

    kind: AnomalyKind
    what: str
    alert_count: int
    lasting_count: int
    told: Anomaly | None = None
    since_step: int = -1
    count: int = 0
    running_count: int = 0
    calm_count: int = 0
    is_told: bool = False
    is_lasting: bool = False

    def good(self) -> None:
        """A good report."""
        self.running_count = 0
        self.calm_count += 1
        if self.calm_count >= CALM_COUNT or not self.is_told:
            self.count, self.is_told, self.is_lasting = 0, False, False

    def bad(self, step: int, value: float, usual: str = "") -> None:
        """A bad one."""
        if not self.count:
            self.since_step = step
        self.count += 1
        self.running_count += 1
        self.calm_count = 0
        self.is_told = self.is_told or self.running_count >= self.alert_count
        self.is_lasting = self.is_lasting or self.running_count >= self.lasting_count
        if self.is_told:
            value_words = number_words(value)
            self.told = Anomaly(
                self.kind, self.since_step, step, self.count, self.what, value_words, usual, self.is_lasting
            )


class _Window:
    """The last good numbers, and the bound that follows from them, which is worked out now and then."""

    def __init__(
        self, bound: Callable[[Sequence[float]], tuple[float, str]], numbers: Sequence[tuple[int, float]] = ()
    ) -> None:
        """``numbers``: good ones of an earlier attempt, each with its step."""
        self._bound, self._numbers = bound, deque(numbers, maxlen=WINDOW_COUNT)
        self._since_count = len(numbers)
        self.max, self.usual = math.inf, ""
        self._work_out()

    def add(self, step: int, number: float) -> None:
        """A good one."""
        self._numbers.append((step, number))
        self._since_count += 1
        self._work_out()

    def _work_out(self) -> None:
        if len(self._numbers) >= KNOWN_MIN_COUNT and self._since_count >= BOUNDS_EVERY_COUNT:
            self._since_count = 0
            self.max, self.usual = self._bound([number for _, number in self._numbers])

    def up_to(self, step: int) -> list[tuple[int, float]]:
        """The good ones up to this step."""
        return [one for one in self._numbers if one[0] <= step]


def _median(numbers: Iterable[float]) -> float:  # as good here as that of ``statistics``, which is slow to load
    in_order = sorted(numbers)
    return in_order[len(in_order) // 2]


def _loss_bound(losses: Sequence[float]) -> tuple[float, str]:
    middle = _median(losses)
    spread = MAD_TO_SIGMA * _median(abs(loss - middle) for loss in losses)
    return middle + Z_MAX * max(spread, SPREAD_MIN_SHARE * abs(middle)), f"median {number_words(middle)}"


def _norm_bound(norms: Sequence[float]) -> tuple[float, str]:
    mean = sum(norms) / len(norms)
    return NORM_FACTOR * mean, f"mean {number_words(mean)}"


class LossWatch:
    """One rank's reports in one attempt."""

    def __init__(self, before: LossWatch | None = None, resumed_at: int = -1) -> None:
        """``before``: that of the earlier attempt. ``resumed_at``: the step of the checkpoint; -1: it begins anew."""
        self._resumed_at = resumed_at
        losses = before._losses.up_to(resumed_at) if before is not None else []  # noqa: SLF001 - of the same class
        norms = before._norms.up_to(resumed_at) if before is not None else []  # noqa: SLF001
        self._losses: _Window = _Window(_loss_bound, losses)
        self._norms: _Window = _Window(_norm_bound, norms)
        self._loss_not_finite = _Stretch(AnomalyKind.NOT_FINITE, LOSS, 1, NOT_FINITE_LASTING_COUNT)
        self._norm_not_finite = _Stretch(AnomalyKind.NOT_FINITE, NORM, NORM_NOT_FINITE_COUNT, NORM_NOT_FINITE_COUNT)
        self._blow_up = _Stretch(AnomalyKind.BLOW_UP, LOSS, ALERT_COUNT, LASTING_COUNT)
        self._gradient = _Stretch(AnomalyKind.GRADIENT, NORM, NORM_ALERT_COUNT, LASTING_COUNT)
        self._flat = _Stretch(AnomalyKind.FLAT, LOSS, FLAT_COUNT, NEVER)
        self._last_loss = math.nan

    @property
    def anomalies(self) -> tuple[Anomaly, ...]:
        """The newest of each kind."""
        rules = (self._loss_not_finite, self._norm_not_finite, self._blow_up, self._gradient, self._flat)
        return tuple(rule.told for rule in rules if rule.told is not None)

    def report(self, step: int, loss: float | None, grad_norm: float | None) -> None:
        """What the rank said of one step; None: nothing."""
        if step < self._resumed_at:  # the script began elsewhere, so nothing is known of what is usual there
            self._losses, self._norms = _Window(_loss_bound), _Window(_norm_bound)
        self._resumed_at = -1
        if loss is not None:
            self._report_loss(step, loss)
        if grad_norm is not None:
            self._report_norm(step, grad_norm)

    def _report_loss(self, step: int, loss: float) -> None:
        if loss == self._last_loss:
            self._flat.bad(step, loss)
        else:
            self._flat.good()
        self._last_loss = loss
        if not math.isfinite(loss):
            self._loss_not_finite.bad(step, loss)
            return
        self._loss_not_finite.good()
        if loss > self._losses.max:
            self._blow_up.bad(step, loss, self._losses.usual)
            return
        self._blow_up.good()
        self._losses.add(step, loss)

    def _report_norm(self, step: int, norm: float) -> None:
        if not math.isfinite(norm):
            self._norm_not_finite.bad(step, norm)
            return
        self._norm_not_finite.good()
        if norm > self._norms.max > 0.0:
            self._gradient.bad(step, norm, self._norms.usual)
            return
        self._gradient.good()
        self._norms.add(step, norm)
