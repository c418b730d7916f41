"""All pieces are dealt out, each once, in order and evenly."""

from hypothesis import given
from hypothesis import strategies as st

from gangrun.core.sharing import share_of


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
