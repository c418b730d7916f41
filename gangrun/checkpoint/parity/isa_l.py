"""ISA-L's erasure code by ctypes: the same sums as ``field.Slow``, at gigabytes a second.

Taken from the system's ``libisal.so.2`` or from the wheel of pyeclib, which brings one for x86-64 and aarch64; of
pyeclib itself nothing is used, as its own interface copies each fragment several times and puts a header before it. A
library is believed once it has answered one question as the slow way does. Calls hold no lock of the interpreter.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import metadata

from gangrun.checkpoint.parity.field import Row, Slow, Sums

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
