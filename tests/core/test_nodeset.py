"""Sets of node names, folded and unfolded; and the words of a sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.core import nodeset
from gangrun.core import text as wording
from gangrun.core.nodeset import NodesetError, fold, fold_in_order, natural_sort, unfold


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["n3", "n1", "n2", "n2"], "n[1-3]"),
        (["tiger35", *[f"tiger{i}" for i in range(1, 31)]], "tiger[1-30,35]"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n8", "n9", "n10", "n11"], "n[8-11]"),
        (["n98", "n99", "n100"], "n[98-100]"),
        (["n099", "n100"], "n[099-100]"),
        (["n09", "n100"], "n[09,100]"),
        (["n1", "n01"], "n[01,1]"),
        (["r1c2", "r1c3", "r2c2"], "r1c[2-3],r2c2"),
        (["gpu1-ib", "gpu2-ib", "login"], "gpu[1-2]-ib,login"),
        (["box-0", "box-1"], "box-[0-1]"),
        (["odd[1]", "odd[2]"], "odd[1],odd[2]"),
    ],
)
def test_fold(names: list[str], folded: str) -> None:
    assert fold(names) == folded


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("  ", ()),
        ("a, b,a", ("a", "b")),
        ("tiger[1-3,35]", ("tiger1", "tiger2", "tiger3", "tiger35")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("r[1-2]c[3-4]", ("r1c3", "r1c4", "r2c3", "r2c4")),
        ("a[1]-ib,b", ("a1-ib", "b")),
        ("n[ 1 , 2]", ("n1", "n2")),
    ],
)
def test_unfold(text: str, names: tuple[str, ...]) -> None:
    assert unfold(text) == names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("n[1", "not closed"),
        ("n1]", "do not match at character 3"),
        ("n[[1]]", "do not match at character 3"),
        ("n[x]", "'x' is neither a number nor a range"),
        ("n[]", "neither"),
        ("n[1-]", "neither"),
        ("n[3-1]", "backwards"),
        ("a,,b", "a name is missing"),
        ("a,", "a name is missing"),
        ("n[1-9999999999]", "more than 100000 nodes"),
        ("n[0-999]m[0-999]", "more than 100000 nodes"),
    ],
)
def test_unfold_says_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(NodesetError, match=words.replace("[", r"\[")):
        unfold(text)


def test_natural_order() -> None:
    assert natural_sort(["n10", "n9", "n1", "a", "n09", "n9b"]) == ["a", "n1", "n09", "n9", "n9b", "n10"]


name = st.from_regex(r"[a-z]{1,3}[0-9]{0,4}([a-z-]{0,2}[0-9]{0,2})?", fullmatch=True)


@given(st.lists(name, max_size=40))
def test_round_trip(names: list[str]) -> None:
    assert sorted(unfold(fold(names))) == sorted(set(names))
    assert fold(unfold(fold(names))) == fold(names)


@pytest.mark.parametrize(
    ("names", "lists"),
    [
        (["n1", "n2", "n10"], ("n[1-2,10]",)),
        (["n3", "n1", "n2", "gpu-a"], ("n3", "n[1-2]", "gpu-a")),
        ([], ()),
        (["n1", "n1"], None),
        (["a,b"], None),
        (["n1", "n[2"], None),
    ],
)
def test_a_list_folded_in_order_unfolds_to_that_order_or_is_none(names: list[str], lists: object) -> None:
    assert fold_in_order(names) == lists


@given(st.lists(name, max_size=20))
def test_order_is_total(names: list[str]) -> None:
    assert natural_sort(names) == natural_sort(reversed(names))


# ---- words -----------------------------------------------------------------------------------------------------------


def test_words() -> None:
    assert [wording.signal_name(number) for number in (9, 31, 0, 64)] == [
        "SIGKILL (9)",
        "SIGSYS (31)",
        "signal 0",
        "signal 64",
    ]
    assert wording.one_line(" a\n\tb\x00 é") == "a b\\x00 é"
    assert wording.one_line("x" * 300) == "x" * 239 + "…"
    assert [wording.cut_middle("abcdefgh", count) for count in (8, 7, 4)] == ["abcdefgh", "abc…fgh", "ab…h"]
    assert wording.last_lines("a\n\nb\n  c\n  ~~^~~\nd\n") == "b | c | d" and wording.last_lines("\n") == ""
    assert [wording.counted(number, "node") for number in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
    assert wording.listed(["a", "b"]) == "a, b" and wording.listed(list("abcde")) == "a, b, c and 2 more"
    assert nodeset.EXPANSION_MAX_COUNT >= 10_000
