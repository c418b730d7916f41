"""The code with which a run that has ended leaves: one table for jobs, for ``run`` and for viewers."""

from __future__ import annotations

from gangrun.core.model import Phase

EXIT_CODES = {Phase.SUCCEEDED: 0, Phase.FAILED: 1, Phase.CANCELLED: 130}
