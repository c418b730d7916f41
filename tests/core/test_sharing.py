"""All pieces are dealt out, each once, in order and evenly."""

from hypothesis import given
from hypothesis import strategies as st

from gangrun.core.checkpoints.resume import PATIENCE_MIN_S, far_share, patience_s, readers_max_count, share_of


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
