"""Settings: flag > variable > ./gangrun.toml > user's config > default, each with its origin; mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangrun.config.environment import config_files
from gangrun.config.layers import layered
from gangrun.config.request import checkpoint_place, name_of
from gangrun.config.settings import SETTINGS
from tests.command_line import Call


def test_the_strongest_source_wins_and_is_named(home: Path, gangrun: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "config" / "gangrun").mkdir(parents=True)
    (home / "config" / "gangrun" / "config.toml").write_text('max_restarts = 7\nstop-grace = "2m"\nname = "mine"\n')
    (home / "gangrun.toml").write_text("max_restarts = 8\nhang_timeout = 90\n")
    monkeypatch.setenv("GANGRUN_HANG_TIMEOUT", "15m")
    settings = gangrun("config", "--show", "--json").json["settings"]
    assert settings["max_restarts"] == {"value": 8, "origin": "gangrun.toml"}
    assert settings["stop_grace"]["value"] == 120.0
    assert settings["stop_grace"]["origin"].endswith("config/gangrun/config.toml")
    assert settings["hang_timeout"] == {"value": 900.0, "origin": "GANGRUN_HANG_TIMEOUT"}
    assert settings["nodes"] == {"value": 1, "origin": "default"}
    (home / "other.toml").write_text("max_restarts = 9\n")
    assert gangrun("config", "--config", "other.toml", "--json").json["settings"]["max_restarts"]["value"] == 9
    said = gangrun("config").out
    assert "GANGRUN_HANG_TIMEOUT" in said
    assert "900 s" in said


def test_a_flag_is_strongest() -> None:
    found = layered({"max_restarts": "1"}, {"GANGRUN_MAX_RESTARTS": "2"}, ())
    assert (found["max_restarts"].value, found["max_restarts"].origin) == (1, "--max-restarts")


@pytest.mark.parametrize(
    ("text", "wait_s"), [("off", None), ("spare", 0.0), ("wait:5", 300.0), ("WAIT:0.5", 30.0), ("wait:10080", 604800.0)]
)
def test_what_a_missing_node_leads_to(text: str, wait_s: float | None) -> None:
    assert layered({"refill": text}, {}, ())["refill"].value == wait_s


@pytest.mark.parametrize("text", ["on", "wait", "wait:", "wait:0", "wait:-1", "wait:nan", "wait:10081", "spare:3", ""])
def test_a_refill_that_cannot_be_is_refused(home: Path, gangrun: Call, text: str) -> None:
    said = gangrun("submit", "--dry-run", "--refill", text, "true")
    assert said.code == 2, said.out
    assert f"--refill: {text!r}" in said.err, "the value as it was given"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_restart = 3", "did you mean max_restarts?"),
        ("zzz = 3", "known keys"),
        ("max_restarts = -1", "not a whole number"),
        ('name = "a"\n\nmax-restarts = -1', "gangrun.toml:3: max-restarts: -1 is"),
        ("poison_times = 1", "one failure proves nothing"),
        ('on_slow_rank = "race"', "'race' is not one of alert, move"),
        ("nproc_per_node = 99999999999999999999", "a node has at most 1024 ranks"),
        ("max_restarts = [", "is not TOML"),
        ('hang_timeout = "soon"', "is not a time"),
        ("observe = 3", "neither true nor false"),
        ("[max_restarts]\na = 1", "not a whole number"),
    ],
)
def test_mistakes_in_a_file_are_told_with_the_file(home: Path, gangrun: Call, text: str, words: str) -> None:
    (home / "gangrun.toml").write_text(text + "\n")
    said = gangrun("config")
    assert said.code == 2
    assert "gangrun.toml" in said.err
    assert words in said.err


@pytest.mark.parametrize(
    ("flags", "place"),
    [
        ({}, ("", "")),
        ({"checkpoint_dir": "ckpt"}, ("{home}/ckpt", "")),
        ({"checkpoint_file": "latest.pt"}, ("{home}", "latest.pt")),
        ({"checkpoint_file": "out/latest.pt"}, ("{home}/out", "latest.pt")),
        ({"checkpoint_dir": "out", "checkpoint_file": "latest.pt"}, ("{home}/out", "latest.pt")),
        ({"checkpoint_dir": "out", "checkpoint_file": "out/latest.pt"}, ("{home}/out", "latest.pt")),
        ({"checkpoint_file": "/data/latest.pt"}, ("/data", "latest.pt")),
    ],
)
def test_where_the_checkpoints_are(home: Path, flags: dict[str, str], place: tuple[str, str]) -> None:
    directory, file = place
    assert checkpoint_place(layered(flags, {}, ())) == (directory.format(home=home), file)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "--checkpoint-dir a --checkpoint-file b/latest.pt",
            "b/latest.pt is not in --checkpoint-dir a",
        ),
        ("--checkpoint-file folder", "is a directory"),
        ("--keep-copies 2", "no --checkpoint-file is given"),
        ("--checkpoint-file latest.pt --memory-checkpoints", "keeps the saves of gangrun.Checkpointer"),
        ("--resume 40", "no checkpoint directory is known"),
        ("--resume folder/step-9 --checkpoint-dir folder", "--resume folder/step-9: there is no such checkpoint"),
        ("--resume gone/step-9 --checkpoint-dir folder", "--resume gone/step-9: there is no such checkpoint"),
    ],
)
def test_a_checkpoint_file_that_cannot_be_meant_is_refused(home: Path, gangrun: Call, words: str, told: str) -> None:
    (home / "folder").mkdir()
    (home / "train.py").touch()
    said = gangrun("run", *words.split(), "train.py")
    assert said.code == 2 and told in said.err, said.err
    assert not (home / "gangrun_runs").exists(), "refused before anything is made"


def test_a_misspelt_variable_is_told(home: Path, gangrun: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANGRUN_MAX_RESTART", "3")
    assert "did you mean GANGRUN_MAX_RESTARTS?" in gangrun("config").err
    assert gangrun("config", "--json").json["warnings"]


def test_a_config_that_is_not_there(home: Path, gangrun: Call) -> None:
    assert gangrun("config", "--config", "nowhere.toml", "--json").error["kind"] == "config"


@pytest.mark.parametrize("text", ["on", "always", "every", "every=0", "every=ten", ""])
def test_an_sdc_check_that_cannot_be_is_refused(home: Path, gangrun: Call, text: str) -> None:
    known = {"Saves": "saves", "off": "off", "every=0100": "every=100"}
    assert {one: layered({"sdc_check": one}, {}, ())["sdc_check"].value for one in known} == known
    said = gangrun("submit", "--dry-run", "--sdc-check", text, "true")
    assert said.code == 2 and f"--sdc-check: {text!r} is not one of off, saves, every=N" in said.err, said.err


@pytest.mark.parametrize("text", ["on", "rollback", ""])
def test_an_action_on_changed_data_that_cannot_be_is_refused(home: Path, gangrun: Call, text: str) -> None:
    for one in ("off", "alert", "stop"):
        assert layered({"data_checksums": one.upper()}, {}, ())["data_checksums"].value == one
    said = gangrun("submit", "--dry-run", "--data-checksums", text, "true")
    assert said.code == 2 and f"--data-checksums: {text!r} is not one of off, alert, stop" in said.err, said.err


@pytest.mark.parametrize("text", ["USR1", "SIGUSR1", "usr1", "10"])
def test_a_save_signal_is_taken_in_every_usual_spelling(text: str) -> None:
    assert layered({"save_signal": text}, {}, ())["save_signal"].value == "USR1"


@pytest.mark.parametrize("text", ["KILL", "USR3", "99", "-10", "RTMIN"])
def test_a_save_signal_that_cannot_be_is_refused(home: Path, gangrun: Call, text: str) -> None:
    (home / "gangrun.toml").write_text(f'save_signal = "{text}"\n')
    said = gangrun("config")
    assert said.code == 2
    assert "cannot be the signal that tells a script to save" in said.err
    assert "give one of HUP, INT" in said.err


@pytest.mark.parametrize("text", ["8", "0+2", "8+0", "8+2+1", "100+100", "none", ""])
def test_a_protection_of_memory_that_cannot_be_is_refused(home: Path, gangrun: Call, text: str) -> None:
    (home / "gangrun.toml").write_text(f'memory_protection = "{text}"\n')
    said = gangrun("config")
    assert said.code == 2 and (
        "is neither copy nor parity as 8+2" in said.err or "spread over at most 128 nodes" in said.err
    )


@pytest.mark.parametrize(
    ("options", "variables", "said"),
    [
        (("--memory-limit", "1G"), {}, "--memory-limit: this run keeps no checkpoints in memory"),
        (("--memory-protection", "8+2"), {}, "--memory-protection: this run keeps no checkpoints in memory"),
        ((), {"GANGRUN_MEMORY_LIMIT": "1G"}, "GANGRUN_MEMORY_LIMIT: this run keeps no checkpoints in memory"),
        (("--memory-checkpoints", "--memory-limit", "1G"), {}, "needs a checkpoint directory"),
    ],
)
def test_what_is_said_about_steps_in_memory_that_are_not_kept_is_no_secret(
    home: Path,
    gangrun: Call,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    variables: dict[str, str],
    said: str,
) -> None:
    (home / "train.py").write_text("")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    error = gangrun("run", "--json", *options, "train.py").error
    assert error["kind"] == "usage" and said in error["message"], error


@pytest.mark.parametrize(
    ("argv", "module", "name"),
    [
        (("python", "a/train.py"), "", "train"), (("python", "-m", "my.trainer", "-v"), "my.trainer", "trainer"),
        (("/env/python", "-m", "my.trainer"), "", "trainer"), (("./go.sh", "1"), "", "go.sh"),
    ],
)  # fmt: skip
def test_a_run_is_named_by_what_it_runs(argv: tuple[str, ...], module: str, name: str) -> None:
    assert name_of(argv, module, argv[0] != "./go.sh") == name


def origins(gangrun: Call, *names: str) -> list[tuple[object, str]]:
    """(value, origin) of settings as ``gangrun config`` shows them."""
    told = gangrun("config", "--json")
    assert told.code == 0, told.out
    return [(told.json["settings"][name]["value"], told.json["settings"][name]["origin"]) for name in names]


def test_a_sites_file_is_weaker_than_the_users_and_the_projects(
    home: Path, gangrun: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, user = home / "site.toml", home / "config" / "gangrun" / "config.toml"
    monkeypatch.setenv("GANGRUN_SITE_CONFIG", str(site))
    user.parent.mkdir(parents=True)
    site.write_text('max_restarts = 7\nsettle = "1s"\nstop_grace = "30s"\n')
    user.write_text('settle = "2s"\nstop_grace = "40s"\n')
    (home / "gangrun.toml").write_text('stop_grace = "50s"\n')
    found = origins(gangrun, "max_restarts", "settle", "stop_grace")
    assert found == [(7, str(site)), (2.0, str(user)), (50.0, "gangrun.toml")]
    shown = gangrun("config").out
    assert shown.index("gangrun.toml") < shown.rindex(str(user)) < shown.rindex(str(site))


def test_the_sites_file_is_in_etc() -> None:
    assert config_files()[2] == Path("/etc/gangrun.toml")


def test_a_profile_stands_between_variables_and_files(
    home: Path, gangrun: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = home / "site.toml"
    monkeypatch.setenv("GANGRUN_SITE_CONFIG", str(site))
    site.write_text('[profiles.fat]\nsettle = "1s"\nmax-restarts = 5\nstop_grace = "9s"\n')
    text = 'profile = "fat"\nsettle = "7s"\nmax_restarts = 9\n[profiles.fat]\nmax_restarts = 6\n'
    (home / "gangrun.toml").write_text(text)
    monkeypatch.setenv("GANGRUN_STOP_GRACE", "20s")
    found = origins(gangrun, "settle", "max_restarts", "stop_grace")
    assert found == [
        (1.0, f"profile fat ({site})"), (6, "profile fat (gangrun.toml)"), (20.0, "GANGRUN_STOP_GRACE"),
    ]  # fmt: skip
    monkeypatch.setenv("GANGRUN_PROFILE", "h100")
    found = origins(gangrun, "settle", "gpus_per_node", "max_restarts")
    assert found == [(7.0, "gangrun.toml"), ("8", "profile h100 (built in)"), (9, "gangrun.toml")]
    flags = {"profile": "a100", "gpus_per_node": "4"}
    made = layered(flags, {"GANGRUN_PROFILE": "h100"}, ())
    assert (made["gpus_per_node"].value, made["health"].value.bounds) == ("4", {"ib_rate_gbps": 200})


def test_a_profile_changes_only_the_limits_that_it_names(tmp_path: Path) -> None:
    file = tmp_path / "gangrun.toml"
    file.write_text(
        "[health]\nib_rate_gbps = 100\nmargin_warn_c = 3\n[profiles.h100]\nhealth = { power_limit_share = 0.5 }\n"
    )
    found = layered({"profile": "h100"}, {}, (file,))["health"].value
    assert found.bounds == {"ib_rate_gbps": 400, "margin_warn_c": 3, "power_limit_share": 0.5}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('profile = "h10"', "did you mean h100?"),
        ('profile = "mine"', "known profiles: a100, b200, h100"),
        ("[profiles.x]\nmax_restart = 3", "did you mean max_restarts?"),
        ('[profiles.x]\nprofile = "h100"', "unknown key 'profile'"),
        ("profiles = 3", "is no table"),
        ("profiles.x = 3", "is no table"),
        ('profile = "x"\n[profiles.x]\nmax_restarts = -1', "profile x (gangrun.toml): -1 is not a whole number"),
    ],
)
def test_mistakes_in_a_profile_are_told(home: Path, gangrun: Call, text: str, words: str) -> None:
    (home / "gangrun.toml").write_text(text + "\n")
    said = gangrun("config")
    assert (said.code, words in said.err) == (2, True), said.err


@pytest.mark.parametrize("name", ["saves_with", "on_anomaly", "on_slow_rank", "data_checksums"])
def test_the_words_of_a_choice_are_those_that_the_core_knows(name: str) -> None:
    """They stand twice, since --help does not import the core."""
    kind = next(row.kind for row in SETTINGS if row.name == name)
    assert isinstance(kind.words, tuple)
    members = [kind.parse(word) for word in kind.words]
    assert [one.value for one in members] == list(kind.words)
    assert len(members) == len(type(members[0]).__members__)
