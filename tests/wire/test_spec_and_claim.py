"""What the user submitted, and who holds a term: files that other processes and later versions read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.core.policy import HangPolicy, Policy, Timing
from gangrun.wire import record as claims
from gangrun.wire import spec as specs
from gangrun.wire.record import Claim, ClaimError
from gangrun.wire.spec import CheckpointSpec, JobLine, LogSpec, RunSpec, SpecError

SPEC = RunSpec(
    run="20261121-065001-k3f9",
    name="a 'name' with $(spaces)\nand ☃",
    world="local",
    command=("python", "train.py", "--x=$(rm -rf /)", ""),
    python=True,
    working_directory="/w/a b",
    nodes=("n0", "n1"),
    nodes_min_count=1,
    slots_per_node=2,
    ranks_per_slot=1,
    checkpoint=CheckpointSpec("/c", r"global_step(\d+)"),
    log=LogSpec(per_rank=True),
    policy=Policy(timing=Timing(beat_every_s=0.5), hang=HangPolicy(timeout_s=4.0), restarts_max_count=7),
    environment={"A": "1"},
    secret_names=("API_KEY",),
)
CLAIM = Claim(3, "r", "j", "n0", 17, 99, "tcp://10.0.0.1:1", "key", 1.5)


def test_a_spec_comes_back_as_it_was_and_people_can_read_it() -> None:
    data = specs.encode(SPEC)
    assert specs.decode(data) == SPEC
    assert data.count(b"\n") > 20
    assert not SPEC.is_scheduled and specs.decode(changed(world="slurm")).is_scheduled


def test_the_full_size_is_that_of_all_nodes() -> None:
    assert SPEC.full_world_size == 4
    assert specs.decode(changed(nodes=[], nodes_count=3)).full_world_size == 6, "a job names its own nodes"


def test_a_claim_comes_back_as_it_was() -> None:
    assert claims.decode_claim(claims.encode_claim(CLAIM)) == CLAIM


def changed(**fields: Any) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(specs.encode(SPEC)), **fields})


def test_a_job_whose_shell_makes_the_command_says_where_and_what() -> None:
    told = SPEC.with_line(JobLine("/deeper", ("python", "train.py", "--job", "7")))
    assert (told.working_directory, told.command[-1]) == ("/deeper", "7")
    assert told.with_line(JobLine(SPEC.working_directory, SPEC.command)) == SPEC


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (changed(schema=specs.SCHEMA + 1, nodes="all new"), "schema 2, newer.*upgrade"),
        (changed(nodes="n0"), "not a run's spec.*nodes"),
        (changed(policy={"restarts_max_count": -1}), "must not be negative"),
        (b"[]", "not a run's spec"),
        (b"", "not a run's spec"),
        (specs.encode(SPEC)[:-40], "not a run's spec"),
        (b'"\xff"', "not a run's spec"),
        (b"[" * 100_000, "not a run's spec"),
    ],
)
def test_a_spec_that_cannot_be_used_says_why(data: bytes, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        specs.decode(data)


@pytest.mark.parametrize("data", [b"", b"{}", b'{"term":"x"}', claims.encode_claim(CLAIM)[:20], b'"\xff"', b"[" * 9**6])
def test_a_claim_that_is_none_says_why(data: bytes) -> None:
    with pytest.raises(ClaimError, match="not a claim"):
        claims.decode_claim(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    readers: tuple[tuple[Callable[[bytes], object], type[ValueError]], ...] = (
        (specs.decode, SpecError),
        (claims.decode_claim, ClaimError),
    )
    for read, refusal in readers:
        with suppress(refusal):
            read(data)


def test_without_a_directory_nothing_is_looked_for_and_without_memory_nothing_is_flushed() -> None:
    told = CheckpointSpec("d", look_every_s=7.0, memory=True, flush_every_s=9.0)
    assert (told.looks_every_s, told.flushes_every_s) == (7.0, 9.0)
    bare = CheckpointSpec(look_every_s=7.0, flush_every_s=9.0)
    assert (bare.looks_every_s, bare.flushes_every_s) == (0.0, 0.0)
