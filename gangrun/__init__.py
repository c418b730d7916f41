"""gangrun: a resilient launcher for PyTorch training. The public names, fetched when first asked for.

Nothing may be imported here: ``gangrun --version``, ``status`` and every rank's first line pay for this file. What a
training script calls lives in ``training``; how the house is built is told in ``docs/architecture.md``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gangrun.core.checkpoints.retention import Keep as Keep
    from gangrun.training.checkpointer import Checkpointer as Checkpointer
    from gangrun.training.checkpointer import CheckpointWarning as CheckpointWarning
    from gangrun.training.environment import ResumePoint as ResumePoint
    from gangrun.training.environment import resume_info as resume_info
    from gangrun.training.replay import ReplayCheck as ReplayCheck
    from gangrun.training.sampler import DataStreams as DataStreams
    from gangrun.training.sampler import GlobalBatchSampler as GlobalBatchSampler
    from gangrun.training.state import CheckpointError as CheckpointError
    from gangrun.training.step import phase as phase
    from gangrun.training.step import step as step

__version__ = "0.1.0"

# public name -> the module that has it. A type checker takes the callbacks for Any: their bases may not be installed.
_PUBLIC = {
    "AccelerateTracker": "gangrun.training.integrations.hugging_face",
    "Checkpointer": "gangrun.training.checkpointer",
    "CheckpointError": "gangrun.training.state",
    "CheckpointWarning": "gangrun.training.checkpointer",
    "DataStreams": "gangrun.training.sampler",
    "GlobalBatchSampler": "gangrun.training.sampler",
    "HuggingFaceCallback": "gangrun.training.integrations.hugging_face",
    "LightningCallback": "gangrun.training.integrations.trainers",
    "torchtitan_hook": "gangrun.training.integrations.trainers",
    "Keep": "gangrun.core.checkpoints.retention",
    "ReplayCheck": "gangrun.training.replay",
    "phase": "gangrun.training.step",
    "step": "gangrun.training.step",
    "resume_info": "gangrun.training.environment",
    "ResumePoint": "gangrun.training.environment",
}

__all__ = [
    "AccelerateTracker",
    "CheckpointError",
    "CheckpointWarning",
    "Checkpointer",
    "DataStreams",
    "GlobalBatchSampler",
    "HuggingFaceCallback",
    "Keep",
    "LightningCallback",
    "ReplayCheck",
    "ResumePoint",
    "__version__",
    "phase",
    "resume_info",
    "step",
    "torchtitan_hook",
]  # the lazy ones come from _PUBLIC


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'gangrun' has no attribute {name!r}; it offers {', '.join(sorted(__all__))}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
