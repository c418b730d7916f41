"""``[health]`` of gangrun.toml: what is taken, and what a person is told of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangrun.config.health_table import HealthTable, health_table
from gangrun.config.layers import layered
from gangrun.config.request import policy_of, spec_of
from gangrun.errors import UserError
from gangrun.wire import spec as wire_spec


def test_what_is_set_reaches_the_run(tmp_path: Path) -> None:
    file = tmp_path / "gangrun.toml"
    file.write_text(
        'max_restarts = 1\n[health]\nmargin_warn_c = 3\nib-devices = ["mlx5_0"]\nfiles_min = 1000\n'
        'off = ["host_load"]\n'
        '[health.commands]\nsite = { run = "/opt/check" }\n'
    )
    settings = layered({}, {}, (file,))
    spec = spec_of(
        settings, run="r", name="n", world="local", command=("true",), python=False, working_directory="/",
        nodes=("a",), slots_per_node=1, ranks_per_slot=1,
    )  # fmt: skip
    health = wire_spec.decode(wire_spec.encode(spec)).health
    assert health.enabled
    assert health.bounds == {"margin_warn_c": 3.0, "ib_devices": ("mlx5_0",), "files_min": 1000}
    assert (health.off, set(health.commands)) == (("host_load",), {"site"})


@pytest.mark.parametrize(
    ("flags", "variables", "toml", "enabled"),
    [
        ({}, {}, "", True),
        ({}, {}, "no_health = true", False),
        ({}, {"GANGRUN_NO_HEALTH": "0"}, "no_health = true", True),
        ({"no_health": True}, {"GANGRUN_NO_HEALTH": "0"}, "", False),
    ],
)
def test_flag_over_variable_over_file(
    tmp_path: Path, flags: dict[str, object], variables: dict[str, str], toml: str, enabled: bool
) -> None:
    file = tmp_path / "gangrun.toml"
    file.write_text(toml)
    assert layered(flags, variables, (file,))["no_health"].value is not enabled


@pytest.mark.parametrize(
    ("toml", "policy"),
    [
        ("", (False, True, True)),
        ("[health]\nactive_at_start = true\nactive-on-suspicion = false", (True, False, True)),
        ("no_health = true\n[health]\nactive_at_start = true", (False, False, True)),
        ("[health]\nmove_suspects = false", (False, True, False)),
        ('[health]\noff = ["active_copies"]', (False, True, True)),
    ],
)
def test_whose_devices_are_put_to_work(tmp_path: Path, toml: str, policy: tuple[bool, bool, bool]) -> None:
    file = tmp_path / "gangrun.toml"
    file.write_text(toml)
    made = policy_of(layered({}, {"GANGRUN_NO_HEALTH": "1" if "no_health" in toml else "0"}, (file,)), "local")
    assert (made.test_at_start, made.test_suspects, made.move_suspects) == policy


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, "must be a table"),
        ({"margin_warn": 3}, "unknown key 'margin_warn' in [health]; did you mean margin_warn_c?"),
        ({"zzz": 3}, "unknown key 'zzz' in [health]"),
        ({"margin_warn_c": "hot"}, "margin_warn_c = 'hot' is not a number"),
        ({"margin_warn_c": True}, "is not a number"),
        ({"margin_warn_c": -1}, "a bound is 0 or more"),
        ({"files_min": 1.5}, "is not a whole number"),
        ({"disk_used_warn": 0.99}, "is below disk_used_warn"),
        ({"ib_devices": "mlx5_0"}, "names of devices"),
        ({"ib_devices": ["a/b"]}, "names of devices"),
        ({"off": ["gpu_count", "host_lod"]}, "no check is called 'host_lod'; did you mean host_load?"),
        ({"off": [3]}, "names of checks"),
        ({"active_at_start": 1}, "active_at_start = 1: true or false"),
        ({"active_at_strat": True}, "did you mean active_at_start?"),
    ],
)
def test_what_cannot_be_is_an_error_with_the_nearest(value: object, words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        health_table(value)
    assert words in str(caught.value)


def test_one_check_may_be_named_alone() -> None:
    assert health_table({"off": "host_load"}) == HealthTable(off=("host_load",))


def test_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "gangrun.toml"
    file.write_text("[health]\nmargin_warn = 3\n")
    with pytest.raises(UserError, match="did you mean margin_warn_c"):
        layered({}, {}, (file,))
