"""All mutants, by name: ``MUTANTS``. Each file imported here enters its own. Next: ``test_canaries``."""

from __future__ import annotations

from tests.sim.canaries import events, jobs, judgement, leases, memory, refills, saves, terms
from tests.sim.canaries.mutation import MUTANTS, Mutant

__all__ = ["MUTANTS", "Mutant", "events", "jobs", "judgement", "leases", "memory", "refills", "saves", "terms"]
