"""Plans of drills: what may stand in the file, what the seed decides, and what is refused with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangrun.errors import UserError
from gangrun.launch.chaos.kinds import KINDS, DrillKind, DrillPlace, refusal_of
from gangrun.launch.chaos.plan import DrillPlan, noticed_limit_s, plan_of
from gangrun.sim import Kind

WHOLE = """
[sla]
noticed = "20s"
steps_lost = 40
[[drill]]
kind = "kill-rank"
rank = 1
at_step = 40
[[drill]]
kind = "stop-rank"
node = "n7"
after = "1m"
sla = { recovery = "2m", right_node = false }
"""


def plan(tmp_path: Path, text: str, *, seed: int = 0, local: bool = True) -> DrillPlan:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return plan_of(path, (), seed, local=local)


def test_a_plan_names_whom_and_when_and_each_drill_has_its_own_sla(tmp_path: Path) -> None:
    first, second = plan(tmp_path, WHOLE).drills
    assert (first.kind, first.rank, first.at_step) == (DrillKind.KILL_RANK, 1, 40)
    assert (second.node, second.at_step, second.after_s) == ("n7", -1, 60.0)
    assert (first.sla.recovery_s, second.sla.recovery_s) == (60.0, 120.0)
    assert (first.sla.right_node, second.sla.right_node) == (True, False)
    assert first.sla.steps_lost_count == second.sla.steps_lost_count == 40
    assert noticed_limit_s(second.sla, second.kind) == 20.0, "what the plan says is stronger than what the kind says"


def test_a_seed_draws_the_same_drills_again_and_another_seed_others(tmp_path: Path) -> None:
    drawn = plan(tmp_path, "random = 40", seed=7)
    assert len(drawn.drills) == 40 and len(drawn.kinds) > 5
    assert plan(tmp_path, "random = 40", seed=7) == drawn != plan(tmp_path, "random = 40", seed=8)
    assert not any(refusal_of(kind, local=True) or KINDS[kind].ends for kind in drawn.kinds)
    assert not any(refusal_of(kind, local=False) for kind in plan(tmp_path, "random = 40", local=False).kinds)
    assert plan(tmp_path, 'random = 9\nkinds = ["xid"]').kinds == {DrillKind.XID}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the plan has no drills"),
        ("random = 0", "random: 0 is not a whole number from 1 up"),
        ("random = 1001", "1001 drills are too many"),
        ("rendom = 1", "unknown key 'rendom'"),
        ('kinds = "xid"', "kinds is not a list"),
        ("[[drill]]\nrank = 1", "[[drill]] 1: kind is missing"),
        ('[[drill]]\nkind = "kill"', "[[drill]] 1: kind: 'kill' is no kind of drill"),
        ('[[drill]]\nkind = "kill-rank"\nrank = -1', "rank: -1 is not a whole number from 0 up"),
        ('[[drill]]\nkind = "kill-rank"\nat_step = 1\nafter = 1', "at_step and after exclude each other"),
        ('[sla]\nnoticed = "0s"\n[[drill]]\nkind = "kill-rank"', "[sla] noticed: '0s' must be more than 0"),
        ("[[drill", "is not TOML"),
    ],
)
def test_a_mistake_in_a_plan_is_told_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError) as told:
        plan(tmp_path, text)
    assert words in told.value.message
    assert told.value.hint


@pytest.mark.parametrize("kind", [kind for kind, row in KINDS.items() if row.place is not DrillPlace.ANYWHERE])
def test_a_kind_that_cannot_be_done_is_refused_with_the_reason(kind: DrillKind) -> None:
    local = KINDS[kind].place is not DrillPlace.LOCAL
    with pytest.raises(UserError) as told:
        plan_of(None, (kind,), 0, local=local)
    assert told.value.message.startswith(f"{kind.value} cannot be done to this run: {KINDS[kind].refusal}")


def test_what_ends_a_live_run_is_the_last_drill(tmp_path: Path) -> None:
    two = '[[drill]]\nkind = "scancel"\n[[drill]]\nkind = "kill-rank"'
    with pytest.raises(UserError, match="ends the run, so no drill can come after it"):
        plan(tmp_path, two, local=False)
    assert len(plan(tmp_path, two, local=True).drills) == 2, "there each has a run of its own"


def test_the_simulated_world_knows_every_fault_that_is_said_to_be_its_own() -> None:
    names = [row.simulated for row in KINDS.values() if row.simulated]
    assert set(names) <= set(Kind.__members__) and len(names) == len(set(names)) > 20
