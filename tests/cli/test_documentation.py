"""What the pages say is what the code has: knobs with unit and default, commands, status keys, exit codes."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from gangrun import errors
from gangrun.cli.main import COMMANDS, MEANT
from gangrun.cli.manage import ConfigReport
from gangrun.cli.plan import PlanReport
from gangrun.cli.simulate import SimulationReport
from gangrun.cli.submit import SUBMIT_COMMON
from gangrun.cli.train import RUN_COMMON
from gangrun.config.health_table import HealthTable
from gangrun.config.settings import GROUPS, SETTINGS, Setting
from gangrun.config.slurm_options import ALL_SETTINGS
from gangrun.core.policy import HangPolicy, Policy, Timing, TrendPolicy
from gangrun.display.explain_page import Explanation, RunEvent
from gangrun.launch.chaos.score import Rehearsal
from gangrun.launch.local import DetachedRun
from gangrun.launch.node_history import ClearedNodes, KnownNodes
from gangrun.launch.prune import PruneReport
from gangrun.launch.slurm_resume import ResumedRun
from gangrun.launch.slurm_submit import DryRun, SubmittedRun
from gangrun.launch.stop import CancelReport, DrainReport, SaveReport
from gangrun.runs.checkpoints import CheckpointList
from gangrun.runs.failures import Failures
from gangrun.runs.report import ClusterReport, RunReport
from gangrun.runs.snapshot import read
from gangrun.runs.status import RecoveryStatus, RunList, Status, status_of
from gangrun.wire.spec import CheckpointSpec
from tests.command_line import Call
from tests.runs.builder import BEGAN, Builder
from tests.runs.stories import failed

DOCS = Path(__file__).parents[2] / "docs"
OPERATING = (DOCS / "operating.md").read_text("utf-8")
RECOVERY = (DOCS / "recovery.md").read_text("utf-8")
STATUS = (DOCS / "status-json.md").read_text("utf-8")
LEARNT = {
    "saves_with": "told by the checkpoints",
    "timeout_s": "learned",
    "save_lead_s": "`checkpoint_grace_s`",
    "exclusions_per_hour_max_count": "5 % of nodes or 2",
    "refill_wait_s": "off",
}
UNITS = {"_s": "s", "_count": "count"}


def knobs() -> dict[str, object]:
    found: dict[str, object] = {}
    for group in (Timing(), HangPolicy(), TrendPolicy(), Policy()):
        for field in fields(group):
            if field.name not in {"timing", "hang", "trends"}:
                found[field.name] = getattr(group, field.name)
    return found


def rows() -> dict[str, tuple[str, str]]:
    cells = re.findall(r"^\| `(\w+)` \| ([^|]*) \| ([^|]*) \| [^|]+ \|$", OPERATING, re.MULTILINE)
    assert len({name for name, _, _ in cells}) == len(cells)
    return {name: (unit.strip(), default.strip()) for name, unit, default in cells}


def test_every_knob_has_a_row_and_every_row_a_knob() -> None:
    assert rows().keys() == knobs().keys()


@pytest.mark.parametrize("name", knobs())
def test_a_knobs_row_has_its_unit_and_default(name: str) -> None:
    unit, default = rows()[name]
    value = knobs()[name]
    if name in LEARNT:
        assert value is None
        assert default == LEARNT[name]
    elif isinstance(value, bool):
        assert default == str(value).lower()
    elif isinstance(value, Enum):
        assert default == value.value
    elif isinstance(value, str):
        assert default == value
    else:
        assert float(default) == value
    for ending, word in UNITS.items():
        if name.endswith(ending):
            assert unit == word


def table_of_settings() -> str:
    """As ``docs/operating.md`` has it."""
    lines = ["| option | unit | default | meaning |", "|---|---|---|---|"]
    for group in GROUPS:
        lines.append(f"| **{group}** | | | |")
        for row in (row for row in ALL_SETTINGS if row.group == group):
            key = f"[{row.name}]" if row.in_files_only else row.flag
            zero = f"; 0 = {row.zero}" if row.zero else ""
            lines.append(f"| `{key}` | {row.kind.unit} | {row.default_words or '-'} | {row.about}{zero} |")
    return "\n".join(lines)


def test_the_table_of_settings_is_the_code_s() -> None:
    assert table_of_settings() in OPERATING, f"docs/operating.md needs this table:\n{table_of_settings()}"


def test_the_knobs_of_the_ladder_have_the_defaults_of_the_code() -> None:
    """All that the tables above name are in this one."""
    above, _, below = RECOVERY.partition("\n## The knobs\n")
    table = re.findall(r"^\| `([\w-]+)` \| ([^|]+) \| [^|]+ \|$", below.partition("\n## ")[0], re.MULTILINE)
    options = {row.flag: row.default_words or "-" for row in ALL_SETTINGS}
    policy = {name: default for name, (_, default) in rows().items()}
    known = {**policy, "active_on_suspicion": str(HealthTable().active_on_suspicion).lower(), **options}
    assert dict(table) == {name: known[name] for name, _ in table}
    named = {name for row in above.splitlines() if row[:2] == "| " for name in re.findall(r"`([\w-]+)[` ]", row)}
    assert named & known.keys() <= dict(table).keys()


@pytest.mark.parametrize("row", ALL_SETTINGS, ids=lambda row: row.name)
def test_help_of_a_setting_is_one_short_sentence(row: Setting) -> None:
    assert len(row.about.split()) <= 15
    assert row.about[0].isupper() and not row.about.endswith(".")
    if row.into.startswith(("policy.", "checkpoint.")):
        found: object = SimpleNamespace(policy=Policy(), checkpoint=CheckpointSpec())
        for name in row.into.split("."):
            found = getattr(found, name)
        assert row.default == found


def test_every_command_has_its_part() -> None:
    headings = re.findall(r"^### `gangrun (\w+)", OPERATING, re.MULTILINE)
    assert headings == list(COMMANDS)


def test_every_exit_code_is_told() -> None:
    codes = (
        errors.DONE,
        errors.RUN_FAILED,
        errors.USAGE,
        errors.UNKNOWN,
        errors.SCHEDULER,
        errors.NO_SUCH_RUN,
        errors.TIME_UP,
        errors.INTERRUPTED,
    )
    told = [int(code) for code in re.findall(r"^\| (\d+) \|", OPERATING, re.MULTILINE)]
    assert told == list(codes)
    assert str(errors.TERMINATED) in OPERATING


PRINTED: dict[str, type[msgspec.Struct]] = {
    "cancel": CancelReport,
    "chaos": Rehearsal,
    "checkpoint": SaveReport,
    "checkpoints": CheckpointList,
    "config": ConfigReport,
    "drain": DrainReport,
    "events": RunEvent,
    "explain": Explanation,
    "logs --errors": Failures,
    "nodes": KnownNodes,
    "nodes clear": ClearedNodes,
    "plan": PlanReport,
    "prune": PruneReport,
    "report": RunReport,
    "report --all": ClusterReport,
    "resume (on Slurm)": ResumedRun,
    "run --detach, resume --detach": DetachedRun,
    "simulate": SimulationReport,
    "status": Status,
    "status --all": RunList,
    "submit": SubmittedRun,
    "submit --dry-run": DryRun,
}  # command -> what it prints with --json; run, wait and resume on one machine print what status does
COMMANDS_SCHEMA = DOCS / "json.schema.json"


def json_schema() -> str:
    """As ``docs/json.schema.json`` has it."""
    schemas, defs = msgspec.json.schema_components(PRINTED.values(), ref_template="#/$defs/{name}")
    return json.dumps({"commands": dict(zip(PRINTED, schemas, strict=True)), "$defs": defs}, indent=2) + "\n"


def test_the_schema_in_the_docs_is_that_of_the_code() -> None:
    assert json_schema() == COMMANDS_SCHEMA.read_text("utf-8"), f"write what json_schema() gives to {COMMANDS_SCHEMA}"


def test_every_key_of_a_status_is_told(runs: Path) -> None:
    status = msgspec.to_builtins(status_of(read(failed(runs).paths), BEGAN))
    told = set(re.findall(r"^\| `(\w+)` \|", STATUS.partition("## Other commands")[0], re.MULTILINE))
    recovery = {field.name for field in msgspec.structs.fields(RecoveryStatus)}
    assert status.keys() | status["attempts"][0].keys() | recovery == told
    for key in (*status["checkpoint"], "node", "since", "until", "term", "host", "pid", "alive"):
        assert key in STATUS


def test_keys_of_the_other_objects_are_told(runs: Path, gangrun: Call, home: Path) -> None:
    failed(runs)
    Builder(runs, run="20261119-000000-other", name="other", checkpoint_dir=str(home)).supervisor()
    story = gangrun("explain", "train", "--json").json
    objects = [
        story["story"][0],
        gangrun("logs", "train", "--errors", "--json").json,
        gangrun("cancel", "train", "--json").json,
        gangrun("checkpoints", "other", "--json").json,
        gangrun("config", "--json").json,
        gangrun("prune", "--dry-run", "--json").json,
        gangrun("nodes", "--json").json,
    ]
    for found in objects:
        for key in found.keys() - {"schema", "run"}:
            assert f"`{key}`" in STATUS, key


@pytest.mark.parametrize(("command", "common"), [("run", RUN_COMMON), ("submit", SUBMIT_COMMON)])
def test_help_shows_ten_options_and_help_all_every_one(
    home: Path, gangrun: Call, command: str, common: tuple[str, ...]
) -> None:
    short, everything = gangrun(command, "--help").out, gangrun(command, "--help-all").out
    assert len(common) == 10
    shown, known = (re.findall(r"^  (?:-\w, )?--([\w-]+)", text, re.MULTILINE) for text in (short, everything))
    assert len(shown) == 10 + len(["help-all", "help"])
    assert set(shown) < set(known)
    assert {row.flag[2:] for row in SETTINGS if not row.in_files_only and row.name != "local_hosts"} <= set(known)
    assert f"{len(known) - len(shown)} more options" in short
    assert gangrun("help", command).out == short


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("list", "status --all"), ("ps", "status --all"), ("top", "status --watch"), ("stop", "cancel"),
     ("kill", "cancel"), ("rm", "prune"), ("version", "--version"), ("chekpoints", "checkpoints"), ("zzz", "")],
)  # fmt: skip
def test_an_unknown_command_is_answered_by_meaning_or_spelling(
    home: Path, gangrun: Call, typed: str, meant: str
) -> None:
    said = gangrun(typed)
    assert said.code == 2
    assert (f"did you mean gangrun {meant}?" if meant else "see gangrun help") in said.err


def test_what_is_meant_exists() -> None:
    words = [word for words in MEANT.values() for word in words.split()]
    assert len(set(words)) == len(words) and not set(words) & COMMANDS.keys()
    assert {meant.split()[0] for meant in MEANT} <= {*COMMANDS, "--version"}


def test_help_and_version_in_their_short_forms(home: Path, gangrun: Call) -> None:
    assert gangrun("help").out == gangrun("-h").out == gangrun("--help").out
    assert gangrun("-V").out == gangrun("--version").out
    assert "did you mean gangrun status?" in gangrun("help", "statsu").err
