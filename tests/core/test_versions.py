"""Versions of tables and sets of ranks behave as dicts and sets that are copied each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gangrun.core.versions import ABSENT, Ranks, Table, count, with_entries

KEYS = st.sampled_from([f"n{i}" for i in range(6)])
NUMBERS = st.integers(0, 30)


@given(st.lists(st.tuples(st.integers(0, 9), KEYS, st.integers(0, 3))))
def test_each_version_stays_as_it_was(changes: list[tuple[int, str, int]]) -> None:
    """A change may follow any version, so that versions branch, and any of them may be read in between."""
    tables, dicts = [Table({"n0": 0})], [{"n0": 0}]
    for at, key, value in changes:
        at %= len(tables)
        tables.append(tables[at].changed_to(key, value))
        dicts.append({**dicts[at], key: value})
        assert list(tables[at // 2].items()) == list(dicts[at // 2].items())
    for table, plain in zip(tables, dicts, strict=True):
        assert table == plain and plain == table and list(table) == list(plain)
        assert (len(table), repr(table), [*table.keys()]) == (len(plain), repr(plain), [*plain])
        assert [*table.values()] == [*plain.values()] and ("n1" in table) == ("n1" in plain)
        assert table.get("n1") == plain.get("n1") and all(table[key] == plain[key] for key in plain)


@given(st.lists(st.tuples(KEYS, st.integers(0, 3)), max_size=8))
def test_a_version_knows_what_changed_since(changes: list[tuple[str, int]]) -> None:
    first = newest = Table({"n0": 0, "n1": 1})
    for key, value in changes:
        newest = newest.changed_to(key, value)
    before = {"n0": 0, "n1": 1}
    assert first.changed_in(newest) == {key: before.get(key, ABSENT) for key, _ in changes}


def _is_odd(number: int) -> bool:
    return number % 2 == 1


@given(st.lists(st.tuples(st.integers(0, 9), KEYS, st.integers(0, 3), st.booleans())))
def test_each_version_counts_what_passes_a_test(changes: list[tuple[int, str, int, bool]]) -> None:
    """Counted before or after later versions, which may branch, each version's count is that of its own entries."""
    tables, dicts = [Table({"n0": 1})], [{"n0": 1}]
    for at, key, value, counts in changes:
        at %= len(tables)
        if counts:
            assert tables[at].count(_is_odd) == sum(map(_is_odd, dicts[at].values()))
        tables.append(tables[at].changed_to(key, value))
        dicts.append({**dicts[at], key: value})
    for table, plain in zip(tables, dicts, strict=True):
        assert count(table, _is_odd) == count(plain, _is_odd) == len([one for one in plain.values() if one % 2])


def test_a_count_goes_on_from_the_version_before() -> None:
    seen: list[int] = []

    def is_big(number: int) -> bool:
        seen.append(number)
        return number > 5

    table = Table({f"n{i}": i for i in range(10)})
    assert table.count(is_big) == 4
    seen.clear()
    newer = table.changed_to("n9", 0).changed_to("n10", 7)
    assert (newer.count(is_big), seen) == (4, [0, 9, 7])


def test_a_table_that_is_no_later_version_says_so() -> None:
    first = Table({"n0": 0})
    other, newer = first.changed_to("n1", 1), first.changed_to("n2", 2)
    assert first.changed_in(newer) == {"n2": ABSENT}
    assert first.changed_in(other) is None and newer.changed_in(first) is None and first.changed_in({}) is None


def test_entries_are_added_to_any_mapping() -> None:
    plain = {"n0": 0}
    one = with_entries(plain, {"n1": 1})
    two = with_entries(one, {"n0": 5, "n2": 2})
    assert (plain, dict(one), dict(two)) == ({"n0": 0}, {"n0": 0, "n1": 1}, {"n0": 5, "n1": 1, "n2": 2})


@given(st.sets(NUMBERS), NUMBERS)
def test_ranks_are_a_set(numbers: set[int], number: int) -> None:
    ranks = Ranks.of(numbers)
    assert ranks == numbers and list(ranks) == sorted(numbers) and len(ranks) == len(numbers)
    assert (number in ranks) == (number in numbers) and "1" not in ranks
    assert ranks.added(number) == Ranks.of({*numbers, number}) and len(ranks.added(number)) == len({*numbers, number})
    assert ranks | {number} == {*numbers, number} and hash(ranks) == hash(frozenset(numbers))
    assert all(after - before > 1 for (_, before), (after, _) in zip(ranks.spans, ranks.spans[1:], strict=False))
    assert repr(Ranks.of((1, 2, 5))) == "Ranks(((1, 2), (5, 5)))"


@given(st.sets(NUMBERS), st.sets(NUMBERS))
def test_ranks_that_came_since(older: set[int], newer: set[int]) -> None:
    assert Ranks.of(older | newer).since(Ranks.of(older)) == newer - older
    assert (Ranks.of(newer).since(Ranks.of(older)) is None) == (not older <= newer)
