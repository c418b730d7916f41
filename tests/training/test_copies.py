"""Ranks compare what they hold in copies: under DDP, FSDP2 and HSDP, to the last bit, and cheaply."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
import torch

from gangrun.training.save.replicas import BLOCK_WORDS, checksum
from tests.training.harness import run_program

TENSORS = {
    "one": torch.tensor([1.5]),
    "no number": torch.tensor([]),
    "scalar": torch.tensor(2.0),
    "odd bytes": torch.arange(13, dtype=torch.uint8),
    "bf16": torch.randn(1001).bfloat16(),
    "many blocks": torch.randn(2 * BLOCK_WORDS * 3 + 7),
    "offset": torch.randn(4001)[1:],
    "transposed": torch.randn(70, 90).t(),
    "nan": torch.full((9,), float("nan")),
}


@pytest.mark.parametrize("name", TENSORS)
def test_each_flipped_bit_is_another_checksum_and_a_copy_is_none(name: str) -> None:
    tensor = TENSORS[name]
    before = int(checksum(tensor))
    assert int(checksum(tensor.clone())) == before
    data = tensor.contiguous().view(-1).view(torch.uint8).clone()
    for at in {0, data.numel() // 2, data.numel() - 1} if data.numel() else ():
        for bit in range(8):
            data[at] ^= 1 << bit
            assert int(checksum(data)) != before, (at, bit)
            data[at] ^= 1 << bit
    assert int(checksum(data)) == before


def test_equal_blocks_that_change_places_are_another_checksum() -> None:
    tensor = torch.arange(4 * BLOCK_WORDS, dtype=torch.int64)
    moved = torch.cat([tensor[BLOCK_WORDS:], tensor[:BLOCK_WORDS]])
    assert int(checksum(tensor)) != int(checksum(moved))


@pytest.mark.processes
def test_under_ddp_and_hsdp_copies_are_compared_and_under_fsdp_there_are_none() -> None:
    """Statistics of BatchNorm differ on all ranks, and one weight is NaN on all: neither is a difference. With two
    copies of each shard, ranks 1 and 3 hold the same.
    """
    cases = [("ddp", -1), ("ddp", 2), ("fsdp", -1), ("fsdp", 2), ("hsdp", -1), ("hsdp", 3)]
    told = [json.loads(line) for line in run_program("copies.py", json.dumps(cases)).splitlines()]
    assert [one["manifest"] for one in told] == ["agreed", "differ", "", "", "agreed", "differ"]
    assert [one["found"] and one["found"]["odd"] for one in told] == [None, [2], None, None, None, [1, 3]]
    assert [told[n]["found"]["copies_count"] for n in (1, 5)] == [4, 2]
    assert [told[n]["found"]["name"] for n in (1, 5)] == ["0.weight", "0.weight"]
    assert (told[1]["found"]["step"], told[1]["found"]["agreed_step"]) == (3, -1)
