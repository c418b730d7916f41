"""Which checkpoint is resumed from, how its reading is shared, which may go, and how often to save."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.core.checkpoints.resume import (
    PATIENCE_MIN_S,
    Candidate,
    Chosen,
    FromZero,
    Kind,
    NothingValid,
    ResumeKind,
    ResumeRequest,
    choose,
    far_share,
    parse_resume,
    patience_s,
    readers_max_count,
    share_of,
    shown,
)
from gangrun.core.checkpoints.retention import CommittedStep, Keep, for_a_rollback, to_prune
from gangrun.core.model import CheckpointRef, Level, Savers
from gangrun.core.text import json_number, known_step, step_or_none, step_words


def test_a_save_time_is_told_as_a_time_and_never_as_a_step() -> None:
    time = 1_795_000_000_000
    assert step_words(time) == "the save of 2026-11-18 11:06:40 UTC"
    assert (known_step(time), step_or_none(time)) == (-1, None)
    for step in (-1, 0, 10**12 - 1, 10**14, 10**18):
        assert (step_words(step), known_step(step), step_or_none(step)) == (f"step {step}", step, step)


@pytest.mark.parametrize(
    ("wanted", "best"), [(ResumeRequest(), 10), (ResumeRequest(ResumeKind.STEP, 2), -1), (ResumeRequest(), -1)]
)
def test_what_cannot_be_judged_is_named_where_nothing_is_found(wanted: ResumeRequest, best: int) -> None:
    choice = choose([], wanted, journal_best_step=best, unjudged="gangrun cannot judge latest.pt")
    assert "gangrun cannot judge latest.pt" in choice.reason
    assert "never committed" not in choice.reason and "ever committed" not in choice.reason


# ---- which checkpoint is chosen --------------------------------------------------------------------------------------


AUTO = ResumeRequest()
ZERO = ResumeRequest(ResumeKind.NONE)


def good(step: int, **changes: object) -> Candidate:
    whole = Candidate(step, f"/c/step-{step}", Level.VERIFIED, True, nonce=f"n{step}")
    return dataclasses.replace(whole, **changes)  # type: ignore[arg-type]


def bad(step: int, why: str = "checksum of x is wrong") -> Candidate:
    return Candidate(step, f"/c/step-{step}", None, False, why)


def unfinished(step: int) -> Candidate:
    return Candidate(step, f"/c/step-{step}", None, False, "unfinished (never committed)", committed=False)


def alien(step: int, why: str = "its format is unknown") -> Candidate:
    return Candidate(step, f"/c/step-{step}", None, False, why, Kind.UNKNOWN, committed=False)


def test_the_newest_valid_one_wins_and_the_newer_ones_are_named_with_their_reasons() -> None:
    choice = choose([good(100), bad(300), unfinished(400), good(200)], AUTO)
    assert isinstance(choice, Chosen)
    assert choice.checkpoint == CheckpointRef(200, "/c/step-200", Level.VERIFIED, Savers.ALL)
    assert choice.nonce == "n200"
    assert [(p.step, p.why) for p in choice.passed_over] == [
        (400, "unfinished (never committed)"),
        (300, "checksum of x is wrong"),
    ]
    assert choice.reason == (
        "resuming from step 200: verified, every checksum holds "
        "(passed over: step 400: unfinished (never committed); step 300: checksum of x is wrong)"
    )


def test_a_format_without_checksums_is_said() -> None:
    choice = choose([good(5, level=Level.COMPLETE)], AUTO)
    assert choice.reason == "resuming from step 5: complete but not verified (its format has no checksums)"
    choice = choose([good(5, level=Level.COMPLETE, why_not="2 of 9 pieces cannot be checked")], AUTO)
    assert "(2 of 9 pieces cannot be checked)" in choice.reason
    assert isinstance(choice, Chosen) and choice.checkpoint.level is Level.COMPLETE


def test_never_committed_means_from_the_beginning() -> None:
    assert choose([], AUTO) == FromZero("starting from the beginning: no checkpoint was ever committed")
    choice = choose([unfinished(3), alien(2)], AUTO)
    assert isinstance(choice, FromZero)
    assert [p.step for p in choice.passed_over] == [3, 2]
    assert "step 3: unfinished (never committed)" in choice.reason


def test_what_gangrun_cannot_judge_is_never_called_no_checkpoint() -> None:
    held = "gangrun cannot judge latest.pt (looks like torch.save)"
    choice = choose([unfinished(3)], AUTO, unjudged=held)
    words = f"the script itself decides what to load: {held} (passed over: step 3: unfinished (never committed))"
    assert choice == FromZero(words, choice.passed_over if isinstance(choice, FromZero) else ())
    unknown = "the script itself decides what to load, whose format gangrun does not know"
    assert choose([alien(2)], AUTO).reason.startswith(unknown)
    assert isinstance(choose([good(1)], AUTO, unjudged=held), Chosen)
    assert isinstance(choose([bad(1)], AUTO, unjudged=held), NothingValid)


def test_committed_and_none_valid_stops_the_run() -> None:
    choice = choose([bad(7), bad(8), unfinished(9)], AUTO)
    assert isinstance(choice, NothingValid)
    assert choice.reason == (
        "none of 2 committed checkpoints may be resumed from (passed over: step 8: checksum of x is wrong; "
        "step 7: checksum of x is wrong); not starting again from zero"
    )
    assert [p.step for p in choice.passed_over] == [9, 8, 7]
    assert choose([bad(7)], AUTO).reason.startswith(
        "the only committed checkpoint may not be resumed from (passed over"
    )


@pytest.mark.parametrize("there", [[], [unfinished(20)], [alien(3)]])
def test_the_journal_remembers_what_the_directory_lost(there: list[Candidate]) -> None:
    choice = choose(there, AUTO, journal_best_step=10)
    assert isinstance(choice, NothingValid)
    assert choice.reason.startswith("step 10 was committed according to the journal but no committed checkpoint exists")
    assert choice.reason.endswith("not starting again from zero")


def test_a_long_list_is_cut_in_the_sentence_only() -> None:
    choice = choose([bad(n) for n in range(1, 8)], AUTO)
    assert "; and 4 more)" in choice.reason and "step 4:" not in choice.reason
    assert len(choice.passed_over) == 7


def test_what_has_no_words_of_its_own_gets_some() -> None:
    wordless = [alien(3, ""), dataclasses.replace(unfinished(2), why_not=""), bad(1, "")]
    choice = choose(wordless, AUTO)
    assert [p.why for p in choice.passed_over] == [
        "its format is unknown",
        "unfinished (never committed)",
        "it was not found valid",
    ]


def test_a_damaged_commit_is_told_as_damaged_though_no_list_can_name_it() -> None:
    damaged = dataclasses.replace(bad(9), kind=Kind.GANGRUN)
    choice = choose([damaged, good(4, kind=Kind.GANGRUN)], AUTO, sealed=frozenset({(9, "n9"), (4, "n4")}))
    assert isinstance(choice, Chosen) and [(p.step, p.why) for p in choice.passed_over] == [
        (9, "checksum of x is wrong")
    ]


def test_a_gangrun_commit_counts_only_if_it_was_sealed() -> None:
    late = good(9, kind=Kind.GANGRUN)
    choice = choose([late, good(4)], AUTO, sealed=frozenset({(9, "another")}))
    assert isinstance(choice, Chosen) and choice.checkpoint.step == 4
    assert "late write" in choice.passed_over[0].why
    nameless = dataclasses.replace(late, nonce=None)
    assert isinstance(choose([nameless], AUTO, sealed=frozenset()), NothingValid)
    for sealed in (None, frozenset({(9, "n9")})):
        choice = choose([late, good(4)], AUTO, sealed=sealed)
        assert isinstance(choice, Chosen) and choice.checkpoint.step == 9


def test_what_a_request_put_out_of_use_stays_so_until_it_is_saved_again() -> None:
    ignored = frozenset({(300, "n300"), (200, "n200")})
    choice = choose([good(300), good(200), good(100)], AUTO, ignored=ignored)
    assert isinstance(choice, Chosen) and choice.checkpoint.step == 100
    assert "earlier resume request" in choice.passed_over[0].why
    choice = choose([good(300), good(200, nonce="new"), good(100)], AUTO, ignored=ignored)
    assert isinstance(choice, Chosen) and choice.checkpoint.step == 200
    assert isinstance(choose([good(300)], AUTO, ignored=ignored), FromZero)


def test_from_the_beginning_on_request() -> None:
    choice = choose([good(3), unfinished(4)], ZERO, journal_best_step=3)
    assert choice.reason == "starting from the beginning, as asked (resume none); 1 checkpoint found and left alone"
    assert choose([], ZERO).reason == "starting from the beginning, as asked (resume none)"


def test_a_step_on_request() -> None:
    wanted = ResumeRequest(ResumeKind.STEP, step=2)
    choice = choose([good(3), good(2)], wanted)
    assert isinstance(choice, Chosen) and choice.checkpoint.step == 2
    assert choice.reason == "resuming from step 2, as asked: verified, every checksum holds"
    refused = choose([good(3), bad(2)], wanted)
    assert refused.reason == "cannot resume from step 2, as asked: checksum of x is wrong"
    assert isinstance(refused, NothingValid)
    absent = choose([good(n) for n in (3, 4, 5, 6)], wanted)
    assert (
        absent.reason
        == "cannot resume from step 2, as asked: it does not exist; the committed steps are 6, 5, 4 and 1 more"
    )
    absent = choose([good(3)], wanted)
    assert absent.reason.endswith("the committed steps are 3")
    nothing = choose([unfinished(1)], wanted)
    assert nothing == NothingValid(
        "cannot resume from step 2, as asked: it does not exist; no committed checkpoint exists"
    )


def test_two_names_for_one_step_the_valid_one_is_taken() -> None:
    wanted = ResumeRequest(ResumeKind.STEP, step=2)
    twin = dataclasses.replace(bad(2), path="/c/step-02x")
    choice = choose([twin, good(2)], wanted)
    assert isinstance(choice, Chosen) and choice.checkpoint.path == "/c/step-2"


def test_a_path_on_request() -> None:
    choice = choose([good(3), good(2)], ResumeRequest(ResumeKind.PATH, path="/c/step-2"))
    assert isinstance(choice, Chosen) and choice.checkpoint.step == 2
    choice = choose([good(3)], ResumeRequest(ResumeKind.PATH, path="/x/a\nb"))
    assert "'/x/a\\nb', as asked" in choice.reason and "\n" not in choice.reason


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("auto", AUTO),
        ("none", ZERO),
        ("300", ResumeRequest(ResumeKind.STEP, step=300)),
        ("./300", ResumeRequest(ResumeKind.PATH, path="./300")),
        ("٣", ResumeRequest(ResumeKind.PATH, path="٣")),
    ],
)
def test_requests_are_read(text: str, wanted: ResumeRequest) -> None:
    assert parse_resume(text) == wanted


@pytest.mark.parametrize("text", ["", "a\0b"])
def test_requests_that_name_nothing_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="resume wants"):
        parse_resume(text)


def test_names_are_shown_on_one_line_and_short() -> None:
    assert shown("step 1") == "step 1"
    assert shown("a\x1b[31m") == r"'a\x1b[31m'"
    assert len(shown("x" * 9999)) < 600


CANDIDATES = st.builds(
    Candidate,
    st.integers(0, 5),
    st.sampled_from(["/a", "/b", "/c"]),
    st.sampled_from([None, *Level]),
    st.booleans(),
    st.sampled_from(["", "why"]),
    st.sampled_from(Kind),
    st.booleans(),
    st.sampled_from([None, "n"]),
)


@given(st.lists(CANDIDATES, max_size=6), st.integers(-1, 3))
def test_never_from_zero_once_anything_was_committed_and_never_an_invalid_one(
    found: list[Candidate], best: int
) -> None:
    choice = choose(found, AUTO, journal_best_step=best)
    usable = [c.step for c in found if c.valid and c.committed and c.kind is not Kind.UNKNOWN]
    if isinstance(choice, Chosen):
        assert choice.checkpoint.step == max(usable)
    else:
        assert not usable
        assert isinstance(choice, NothingValid) == (best >= 0 or any(c.committed for c in found))
        assert len(choice.passed_over) == len(found)
    assert choice.reason


# ---- all pieces are dealt out, each once, in order and evenly --------------------------------------------------------


@given(st.lists(st.integers(0, 10**13), max_size=40), st.integers(1, 12))
def test_all_is_read_once_and_nobody_reads_much_more_than_the_others(sizes: list[int], readers: int) -> None:
    shares = [share_of(sizes, reader, readers) for reader in range(readers)]
    assert [number for share in shares for number in share] == list(range(len(sizes)))
    most = max((sum(sizes[number] for number in share) for share in shares), default=0)
    assert most * readers <= sum(sizes) + max(sizes, default=0) * readers


def test_shares_are_neighbours() -> None:
    assert [share_of([5, 5, 5, 5], reader, 2) for reader in range(2)] == [range(2), range(2, 4)]
    assert [share_of([1, 1], reader, 3) for reader in range(3)] == [range(1), range(1, 2), range(2, 2)]
    assert share_of([], 0, 1) == range(0)


def test_so_many_read_that_each_has_enough_to_do() -> None:
    assert [readers_max_count(total, 100) for total in (0, 99, 199, 200, 1000)] == [1, 1, 1, 2, 10]
    assert readers_max_count(10**15, 0) == 1, "not to be shared"


def test_others_are_waited_for_by_what_the_first_one_took() -> None:
    assert patience_s(0.1) == PATIENCE_MIN_S
    assert patience_s(100.0) == 200.0


@given(st.integers(1, 50))
def test_nobody_reads_what_it_wrote_itself_where_there_is_anybody_else(count: int) -> None:
    shares = [far_share(place, count) for place in range(count)]
    assert sorted(shares) == list(range(count))
    assert count == 1 or all(share != place for place, share in enumerate(shares))


# ---- what may go and what never does ---------------------------------------------------------------------------------


def held(*steps: int, bad: tuple[int, ...] = ()) -> list[CommittedStep]:
    return [CommittedStep(step, step not in bad) for step in steps]


def test_the_newest_stay_and_every_mth_stays_for_good() -> None:
    steps = held(*range(10, 110, 10))
    assert to_prune(steps, Keep()) == ()
    assert to_prune(steps, Keep(3)) == (10, 20, 30, 40, 50, 60, 70)
    assert to_prune(steps, Keep(3, every_steps=50)) == (10, 20, 30, 40, 60, 70)
    assert to_prune(steps, Keep(3), needed_steps=[20]) == (10, 30, 40, 50, 60, 70)


def test_the_newest_valid_ones_stay_however_many_damaged_ones_are_newer() -> None:
    assert to_prune(held(10, 20, 30, 40, 50, bad=(30, 40, 50)), Keep(2)) == (30,)


@pytest.mark.parametrize(
    ("resumed", "written", "needed"),
    [
        (None, (), ()),
        (40, (), (20, 30, 40)),
        (40, (41, 42, 43, 50), (20, 30, 40)),
        (40, (41, 51), (20, 30, 40)),
        (40, (51, 52), ()),
        (20, (22,), (10, 20)),
        (10, (12,), (10,)),
    ],
)
def test_what_a_rollback_needs_stays_until_what_was_loaded_has_shown_itself(
    resumed: int | None, written: tuple[int, ...], needed: tuple[int, ...]
) -> None:
    there = held(10, 20, 30, 35, 40, *written, bad=(35,))
    assert for_a_rollback(there, resumed, written, 10) == needed
    assert not set(to_prune(there, Keep(2), needed)) & set(needed)


@pytest.mark.parametrize("arguments", [(1, 0), (-1, 0), (2, -1)])
def test_keeping_one_is_refused(arguments: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        Keep(*arguments)


@given(st.dictionaries(st.integers(0, 60), st.booleans()), st.integers(2, 6), st.integers(0, 20))
def test_a_valid_one_is_always_left(valid: dict[int, bool], newest: int, every: int) -> None:
    gone = to_prune([CommittedStep(step, ok) for step, ok in valid.items()], Keep(newest, every))
    left = set(valid) - set(gone)
    assert len(left) >= min(len(valid), newest)
    if any(valid.values()):
        assert max(step for step, ok in valid.items() if ok) in left


@pytest.mark.parametrize(
    ("value", "told"),
    [(None, None), (2.5, 2.5), (float("nan"), "NaN"), (float("inf"), "Infinity"), (float("-inf"), "-Infinity")],
)
def test_a_number_that_json_has_not_is_a_word(value: float | None, told: float | str | None) -> None:
    assert json_number(value) == told
