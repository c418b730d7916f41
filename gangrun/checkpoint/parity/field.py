"""Arithmetic of the code: which sum of the shards that are left is a shard that is not.

Bytes are elements of GF(256) modulo x8+x4+x3+x2+1, so adding is XOR and multiplying by one number is a table. ``Slow``
does it with nothing but Python's own: for where ISA-L is not installed, and to test ISA-L against.

``IsaL`` gives the same sums by ctypes, at gigabytes a second. It is taken from the system's ``libisal.so.2`` or from
the wheel of pyeclib, which brings one for x86-64 and aarch64; of pyeclib itself nothing is used, as its own interface
copies each fragment several times and puts a header before it. A library is believed once it has answered one question
as the slow way does. Calls hold no lock of the interpreter.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterator, Sequence
from functools import cache, lru_cache
from importlib import metadata
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


_SYSTEM_NAME = "libisal.so.2"
_TABLE_BYTES = 32  # of ISA-L's, for each coefficient


class IsaL:
    """The sums by ISA-L."""

    def __init__(self, library: ctypes.CDLL, rows: Sequence[Row]) -> None:
        self._encode = library.ec_encode_data
        self._rows_count, self._inputs_count = len(rows), len(rows[0])
        coefficients = bytes(weight for row in rows for weight in row)
        self._tables = ctypes.create_string_buffer(_TABLE_BYTES * len(coefficients))
        library.ec_init_tables(self._inputs_count, self._rows_count, coefficients, self._tables)

    def fill(self, outputs: Sequence[memoryview], inputs: Sequence[memoryview]) -> None:
        """As ``Sums`` says."""
        count = len(outputs[0])
        assert (len(outputs), len(inputs)) == (self._rows_count, self._inputs_count), "made for other shards"
        assert all(len(one) == count for one in (*outputs, *inputs)), "the library would write past the end"
        self._encode(count, self._inputs_count, self._rows_count, self._tables, _addresses(inputs), _addresses(outputs))


def sums_for(rows: Sequence[Row]) -> Sums:
    """The fastest way that is installed."""
    library = found()
    return Slow(rows) if library is None else IsaL(library, rows)


@cache
def found() -> ctypes.CDLL | None:
    """ISA-L, if it is there and adds up; looked for once in the life of the process."""
    for path in _places():
        try:
            library = ctypes.CDLL(path)
            library.ec_encode_data.argtypes = [ctypes.c_int] * 3 + [ctypes.c_void_p] * 3
            library.ec_init_tables.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p]
            library.ec_encode_data.restype = library.ec_init_tables.restype = None
        except (OSError, AttributeError):
            continue
        if _agrees(library):
            return library
    return None


def _places() -> Iterator[str]:
    yield _SYSTEM_NAME
    try:
        files = metadata.distribution("pyeclib").files or []
    except metadata.PackageNotFoundError:
        return
    yield from (str(file.locate()) for file in files if file.name.startswith("libisal"))


def _agrees(library: ctypes.CDLL) -> bool:
    """Whether it gives what the slow way gives: another field or another order of coefficients would show."""
    rows = ((1, 1, 1), (2, 29, 142))
    inputs = [memoryview(bytearray((at * step + 7) % 256 for at in range(333))) for step in (1, 5, 11)]
    ours, theirs = ([memoryview(bytearray(333)) for _ in rows] for _ in range(2))
    Slow(rows).fill(ours, inputs)
    IsaL(library, rows).fill(theirs, inputs)
    return ours == theirs


def _addresses(buffers: Sequence[memoryview]) -> ctypes.Array[ctypes.c_void_p]:
    pointers = [ctypes.addressof(ctypes.c_char.from_buffer(buffer)) for buffer in buffers]
    return (ctypes.c_void_p * len(pointers))(*pointers)
