"""Lightning's ModelCheckpoint: ``DIR/epoch=0-step=500.ckpt`` and ``DIR/last.ckpt``, as lightning 2.6 writes them.

Each is one archive of torch.save, made in memory, then in ``$TMPDIR``, then moved to its name. If that is another file
system, the move is a copy: a kill leaves a torn file under the final name, and the old ``last.ckpt`` is gone. The step
file comes first, then ``last.ckpt``. The name may lie, as a logged metric called "step" replaces the number; so the
step is read inside. With FSDP a ``.ckpt`` is a directory whose ``meta.pt`` comes last.

``fit(ckpt_path="last")`` loads the newest ``last*.ckpt`` by time; if there is none it begins at 0 with a warning only.

Signals: on SIGTERM all ranks agree and leave with 0 after the batch, and save nothing by default. gangrun keeps SIGTERM
from ranks until it stops them all. In a scheduler's job Lightning would requeue that job itself on USR1; under gangrun
it takes its ranks for torchrun's, and sets no such handler.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from gangrun.core.evidence import StateFigures
from gangrun.frameworks.framework import Facts, Framework

_STATES = "optimizer_states"
_LOSS = re.compile(r"(?:train[_/])?loss(?:_step)?")


def _flaw(paths: Collection[str], facts: Facts) -> str:
    if paths and "meta.pt" not in paths:  # a directory
        return "it has no meta.pt, which Lightning writes last"
    if not paths and _STATES not in facts:
        return "it holds weights only (save_weights_only): Lightning would end with an error"
    return ""


def _figures(metrics: bytes) -> StateFigures | None:
    """CSVLogger's ``metrics.csv``: a row for each log, with empty cells; a row may be half written."""
    header, *rows = metrics.decode("utf-8", "replace").split("\n")
    columns = header.strip().split(",")
    step, loss = -1, None
    for row in rows[:-1]:
        cells = dict(zip(columns, row.strip().split(","), strict=False))
        if cells.get("step", "").isdecimal():
            step = max(step, int(cells["step"]))
        name = next((one for one in columns if _LOSS.fullmatch(one) and cells.get(one)), "")
        try:
            loss = float(cells[name]) if name else loss
        except ValueError:
            continue
    return StateFigures(step, loss=loss) if step >= 0 else None


FRAMEWORK = Framework(
    name="lightning",
    title="Lightning",
    names=re.compile(r"(?:.*step=(\d{1,18})(?:-v\d+)?|.*)\.ckpt"),
    file_suffixes=(".pt",),
    facts_file=re.compile(r"meta\.pt"),
    facts_keys=("global_step", _STATES),
    step_key="global_step",
    signs=re.compile(r".*"),  # a sharded one holds torch.distributed.checkpoint's files too
    flaw=_flaw,
    state_files=(
        "metrics.csv",
        "../metrics.csv",
        "lightning_logs/version_*/metrics.csv",
        "../lightning_logs/version_*/metrics.csv",
    ),
    figures_of_state=_figures,
    resume_argument="--ckpt_path",
    taken_if=("--ckpt_path", "LightningCLI"),
    single_file=True,
    loaded_as_newest=re.compile(r"last(?:-v\d+)?\.ckpt"),
    newest_name="last.ckpt",
)
