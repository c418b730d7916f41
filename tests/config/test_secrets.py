"""Secrets among a script's arguments: known by the words of their names, shown nowhere, and told of."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.config.secrets import HIDDEN, redacted, secret_names
from tests.command_line import Call

SECRET = [
    ("--api-key XYZ", "--api-key ***"),
    ("--api_key=XYZ", "--api_key=***"),
    ("TOKEN=abc", "TOKEN=***"),
    ("--hf-token hf_abc", "--hf-token ***"),
    ("+trainer.secret=abc", "+trainer.secret=***"),
    ("WANDB_KEY=q1", "WANDB_KEY=***"),
    ("--wandbApiKey abc", "--wandbApiKey ***"),
    ("--password hunter2", "--password ***"),
    ("--db postgres://me:pw@host/x", "--db postgres://me:***@host/x"),
    ("db=postgres://me:pw@host/x", "db=postgres://me:***@host/x"),
]
HARMLESS = [
    "--tokenizer gpt2", "--max-tokens 2048", "--pad-token pad", "--eos_token=</s>", "--sort-key time", "--token 7",
    "--use-auth-token true", "--use-auth-token --verbose", "--key-file /etc/key", "--secret /run/secrets/one",
    "lr=1e-3", "monkey=brass", "train.py --lr 1", "",
]  # fmt: skip


@pytest.mark.parametrize(("typed", "shown"), SECRET)
def test_what_looks_like_a_secret_is_not_shown(typed: str, shown: str) -> None:
    assert " ".join(redacted(["train.py", *typed.split()])) == f"train.py {shown}"
    assert len(secret_names(typed.split())) == 1


@pytest.mark.parametrize("typed", HARMLESS)
def test_what_only_sounds_like_one_is(typed: str) -> None:
    assert redacted(typed.split()) == tuple(typed.split())
    assert secret_names(typed.split()) == ()


@given(st.lists(st.text(max_size=20), max_size=6))
def test_any_words_keep_their_places(words: list[str]) -> None:
    shown = redacted(words)
    assert len(shown) == len(words)
    assert all(now == was or HIDDEN in now for was, now in zip(words, shown, strict=True))


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_a_word_that_is_repeated_to_its_user_hides_the_secret(home: Path, gangrun: Call, verb: str) -> None:
    said = gangrun(verb, "HF_TOKEN=sesame", "train.py")
    assert said.code == 2
    assert "HF_TOKEN=***" in said.err
    assert "sesame" not in said.err + said.out


def test_who_types_a_secret_is_told_of_a_better_way(home: Path, gangrun: Call) -> None:
    (home / "train.py").write_text("")
    said = gangrun("submit", "--dry-run", "--nodes", "1", "train.py", "--api-key", "sesame")
    assert "--env NAME" in said.err
    assert "--api-key" in said.err
    assert "sesame" not in said.err + said.out
    assert "--env NAME" not in gangrun("submit", "--dry-run", "train.py", "--tokenizer", "gpt2").err
