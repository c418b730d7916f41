"""Arithmetic of the code: which sum of the shards that are left is a shard that is not.

Bytes are elements of GF(256) modulo x8+x4+x3+x2+1, so adding is XOR and multiplying by one number is a table. ``Slow``
does it with nothing but Python's own: for where ISA-L is not installed, and to test ISA-L against.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Protocol

_MODULUS = 0x11D
_ORDER = 255

Row = tuple[int, ...]


class Sums(Protocol):
    """Fills each output with its sum over all inputs; made once for one set of coefficients."""

    def fill(self, outputs: Sequence[memoryview], inputs: Sequence[memoryview]) -> None:
        """All of one length, contiguous, and such as may be written to."""
        ...


def _powers() -> tuple[bytes, bytes]:
    powers, logarithms, value = bytearray(2 * _ORDER), bytearray(256), 1
    for exponent in range(_ORDER):
        powers[exponent] = powers[exponent + _ORDER] = value
        logarithms[value] = exponent
        value = value << 1 ^ (_MODULUS if value & 0x80 else 0)
    return bytes(powers), bytes(logarithms)


_POWERS, _LOGARITHMS = _powers()


def times(a: int, b: int) -> int:
    """The product of two elements."""
    return _POWERS[_LOGARITHMS[a] + _LOGARITHMS[b]] if a and b else 0


def over(a: int, b: int) -> int:
    """The quotient; b is not 0."""
    assert b, "nothing is divided by zero"
    return _POWERS[_LOGARITHMS[a] + _ORDER - _LOGARITHMS[b]] if a else 0


def coefficient(data_count: int, parity: int, data: int) -> int:
    """How often data shard number ``data`` counts in parity shard number ``parity`` (from 0): once in the first."""
    return over(data_count ^ data, (data_count + parity) ^ data)


def parity_rows(data_count: int, parity_count: int) -> tuple[Row, ...]:
    """The coefficients of every parity shard over the data shards."""
    return tuple(tuple(coefficient(data_count, i, j) for j in range(data_count)) for i in range(parity_count))


def rebuild_rows(
    data_count: int, usable: Collection[int], wanted: Sequence[int]
) -> tuple[tuple[int, ...], tuple[Row, ...]] | None:
    """Which of the usable shards to read, and each wanted one's coefficients over them; None: too few are left."""
    lost = [number for number in range(data_count) if number not in usable]
    parities = sorted(number for number in usable if number >= data_count)[: len(lost)]
    if len(parities) < len(lost):
        return None
    left = [number for number in range(data_count) if number in usable]
    inputs = (*left, *parities)
    rows_of = {p: [coefficient(data_count, p - data_count, j) for j in range(data_count)] for p in parities}
    inverse = _inverse([[rows_of[p][j] for j in lost] for p in parities])
    known: dict[int, Row] = {n: tuple(int(n == one) for one in inputs) for n in left}
    for number, weights in zip(lost, inverse, strict=True):
        of_left = tuple(_sum(w, (rows_of[p][j] for p in parities)) for w, j in ((weights, j) for j in left))
        known[number] = (*of_left, *weights)
    for number in wanted:
        if number >= data_count:
            row = [coefficient(data_count, number - data_count, j) for j in range(data_count)]
            columns = zip(*(known[j] for j in range(data_count)), strict=True)
            known[number] = tuple(_sum(row, column) for column in columns)
    return inputs, tuple(known[number] for number in wanted)


def _sum(weights: Sequence[int], values: object) -> int:
    total = 0
    for weight, value in zip(weights, values, strict=True):  # type: ignore[call-overload]
        total ^= times(weight, value)
    return total


def _inverse(matrix: list[list[int]]) -> list[Row]:
    """Of a square part of a Cauchy matrix, which always has one."""
    size = len(matrix)
    rows = [[*row, *(int(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = next(i for i in range(column, size) if rows[i][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        scale = rows[column][column]
        rows[column] = [over(value, scale) for value in rows[column]]
        for i in range(size):
            weight = rows[i][column]
            if i != column and weight:
                rows[i] = [a ^ times(weight, b) for a, b in zip(rows[i], rows[column], strict=True)]
    return [tuple(row[size:]) for row in rows]


@lru_cache(maxsize=256)
def _table(by: int) -> bytes:
    return bytes(times(by, value) for value in range(256))


class Slow:
    """The sums by Python's own strings and numbers: some hundred megabytes a second, and right."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def fill(self, outputs: Sequence[memoryview], inputs: Sequence[memoryview]) -> None:
        """As ``Sums`` says."""
        for output, row in zip(outputs, self._rows, strict=True):
            total = 0
            for weight, data in zip(row, inputs, strict=True):
                if weight:
                    piece = data if weight == 1 else bytes(data).translate(_table(weight))
                    total ^= int.from_bytes(piece, "little")
            output[:] = total.to_bytes(len(output), "little")
