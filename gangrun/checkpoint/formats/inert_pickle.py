"""Reads a pickle as data and can execute nothing, whatever the pickle says.

An own interpreter, not ``pickle.Unpickler`` with a filtered ``find_class``: that one still hashes what it is told to
hash and sizes its memo by what it reads, so a small hostile file can hang it, exhaust memory or overflow the C stack.
Here dictionaries stay lists of pairs, nothing is hashed or called, and every global is only its name.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container
from dataclasses import dataclass

from gangrun.core.checkpoints.resume import shown

# One byte of these makes an object of a hundred: honest files hold one in 20 bytes, a memory bomb little else.
_ONE_BYTE_OBJECTS = (b"}", b"]", b"\x8f", b"\x85")
_BYTES_PER_OBJECT = 6
_OBJECTS_FLOOR_COUNT = 4096
_LONG_MAX_BYTES = 16  # no offset or length needs more


class PickleRefused(Exception):
    """The pickle is torn, hostile or of a kind that is never read here; the message says which."""


@dataclass(frozen=True, slots=True)
class GlobalName:
    """A class or function the pickle refers to, by name only."""

    name: str


class Pairs:
    """A dictionary of the pickle: its pairs in order, nothing hashed."""

    __slots__ = ("pairs",)

    def __init__(self) -> None:
        self.pairs: list[tuple[object, object]] = []

    def field(self, name: str) -> object:
        """The value under a string key, or None."""
        return next((value for key, value in self.pairs if isinstance(key, str) and key == name), None)


class Inert:
    """An object the pickle would have built: what was to be called, with what, and its state."""

    __slots__ = ("args", "name", "state")

    def __init__(self, name: str, args: object) -> None:
        self.name = name
        self.args = args
        self.state: object = None


class _Mark:
    __slots__ = ()


_MARK = _Mark()


class _Machine:
    """One reading of one pickle."""

    __slots__ = ("allowed", "data", "global_names", "memo", "position", "stack")

    def __init__(self, data: bytes, allowed: Container[str]) -> None:
        self.data = data
        self.allowed = allowed
        self.position = 0
        self.stack: list[object] = []
        self.memo: list[object] = []
        self.global_names: dict[str, GlobalName] = {}

    def take(self, count: int) -> bytes:
        end = self.position + count
        if count < 0 or end > len(self.data):
            raise PickleRefused("it ends in the middle (torn)")
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def pop(self) -> object:
        value = self.stack.pop()
        if value is _MARK:
            raise PickleRefused("its operations do not fit together")
        return value

    def pop_to_mark(self) -> list[object]:
        stack = self.stack
        index = len(stack) - 1
        while stack[index] is not _MARK:
            index -= 1
            if index < 0:
                raise PickleRefused("its operations do not fit together")
        items = stack[index + 1 :]
        del stack[index:]
        return items


def read(data: bytes, allowed: Container[str]) -> object:
    """The pickle's value made of plain numbers, strings, lists, tuples, ``Pairs``, ``Inert`` and ``GlobalName``.

    Raises ``PickleRefused`` for anything else, for globals whose ``module.name`` is not in ``allowed`` by name.
    """
    if sum(map(data.count, _ONE_BYTE_OBJECTS)) > _OBJECTS_FLOOR_COUNT + len(data) // _BYTES_PER_OBJECT:
        raise PickleRefused("it builds more objects than a file of its size can need")
    machine = _Machine(data, allowed)
    try:
        return _run(machine)
    except (IndexError, UnicodeDecodeError, struct.error):
        raise PickleRefused(f"its operations do not fit together near byte {machine.position}") from None
    except MemoryError:
        raise PickleRefused("it needs more memory than there is") from None


def _run(m: _Machine) -> object:
    """The loop. The commonest operations stand inline: a large checkpoint has tens of millions of them."""
    data, stack, memo, table = m.data, m.stack, m.memo, _TABLE
    position = 0
    while True:
        opcode = data[position]
        position += 1
        if opcode == 0x94:  # MEMOIZE
            memo.append(stack[-1])
        elif opcode == 0x68:  # BINGET
            stack.append(memo[data[position]])
            position += 1
        elif opcode == 0x6A:  # LONG_BINGET
            stack.append(memo[int.from_bytes(data[position : position + 4], "little")])
            position += 4
        elif opcode == 0x29:  # EMPTY_TUPLE
            stack.append(())
        elif opcode == 0x28:  # MARK
            stack.append(_MARK)
        elif opcode == 0x4B:  # BININT1
            stack.append(data[position])
            position += 1
        elif opcode == 0x7D:  # EMPTY_DICT
            stack.append(Pairs())
        elif opcode == 0x4D:  # BININT2
            stack.append(data[position] | data[position + 1] << 8)
            position += 2
        elif opcode == 0x2E:  # STOP
            value = m.pop()
            if stack:
                raise PickleRefused("its operations do not fit together")
            return value
        else:
            operation = table[opcode]
            if operation is None:
                raise PickleRefused(f"it uses pickle operation {opcode:#04x}, which no checkpoint needs")
            m.position = position
            operation(m)
            position = m.position


def _proto(m: _Machine) -> None:
    version = m.number(1)
    if not 4 <= version <= 5:
        raise PickleRefused(f"it is written in pickle protocol {version}; torch writes 4 or 5")


def _frame(m: _Machine) -> None:
    if m.number(8) > len(m.data) - m.position:
        raise PickleRefused("it ends in the middle (torn)")


def _text(width: int) -> Callable[[_Machine], None]:
    def operation(m: _Machine) -> None:
        m.stack.append(m.take(m.number(width)).decode("utf-8", "surrogatepass"))

    return operation


def _raw(width: int) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(m.take(m.number(width)))


def _constant(value: object) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(value)


def _signed(m: _Machine) -> None:
    m.stack.append(int.from_bytes(m.take(4), "little", signed=True))


def _long(m: _Machine) -> None:
    width = m.number(1)
    if width > _LONG_MAX_BYTES:
        raise PickleRefused(f"it holds a number of {width} bytes")
    m.stack.append(int.from_bytes(m.take(width), "little", signed=True))


def _float(m: _Machine) -> None:
    m.stack.append(struct.unpack(">d", m.take(8))[0])


def _tuple1(m: _Machine) -> None:
    m.stack[-1] = (m.stack[-1],)


def _tuple2(m: _Machine) -> None:
    second = m.stack.pop()
    m.stack[-1] = (m.stack[-1], second)


def _tuple3(m: _Machine) -> None:
    third, second = m.stack.pop(), m.stack.pop()
    m.stack[-1] = (m.stack[-1], second, third)


def _global(m: _Machine) -> None:
    attribute, module = m.pop(), m.pop()
    if not isinstance(attribute, str) or not isinstance(module, str):
        raise PickleRefused("its operations do not fit together")
    name = f"{module}.{attribute}"
    known = m.global_names.get(name)
    if known is None:
        if name not in m.allowed:
            raise PickleRefused(
                f"it refers to {shown(name)}, which no plain checkpoint needs and which loading would run"
            )
        known = m.global_names[name] = GlobalName(name)
    m.stack.append(known)


def _build_new(m: _Machine) -> None:
    stack = m.stack
    args, target = stack.pop(), stack.pop()
    if not isinstance(target, GlobalName) or not isinstance(args, tuple):
        raise PickleRefused("its operations do not fit together")
    if target.name == "torch.Size" and len(args) == 1:
        m.stack.append(args[0])  # a shape reads as the tuple it is
    elif target.name == "collections.OrderedDict" and not args:
        m.stack.append(Pairs())
    else:
        m.stack.append(Inert(target.name, args))


def _set_state(m: _Machine) -> None:
    state = m.stack.pop()
    target = m.stack[-1]
    if not isinstance(target, Inert):
        raise PickleRefused("its operations do not fit together")
    target.state = state


def _append(m: _Machine) -> None:
    value = m.pop()
    _list_under(m).append(value)


def _appends(m: _Machine) -> None:
    values = m.pop_to_mark()
    _list_under(m).extend(values)


def _list_under(m: _Machine) -> list[object]:
    target = m.stack[-1]
    if not isinstance(target, list):
        raise PickleRefused("its operations do not fit together")
    return target


def _set_items(m: _Machine) -> None:
    values = m.pop_to_mark()
    if len(values) % 2:
        raise PickleRefused("its operations do not fit together")
    _pairs_under(m).pairs.extend(zip(values[::2], values[1::2], strict=True))


def _set_item(m: _Machine) -> None:
    value, key = m.pop(), m.pop()
    _pairs_under(m).pairs.append((key, value))


def _pairs_under(m: _Machine) -> Pairs:
    target = m.stack[-1]
    if not isinstance(target, Pairs):
        raise PickleRefused("its operations do not fit together")
    return target


_OPERATIONS: dict[int, Callable[[_Machine], None]] = {
    0x80: _proto,
    0x95: _frame,
    0x8C: _text(1),
    0x58: _text(4),
    0x8D: _text(8),
    0x43: _raw(1),
    0x42: _raw(4),
    0x8E: _raw(8),
    0x4E: _constant(None),
    0x88: _constant(True),
    0x89: _constant(False),
    0x4A: _signed,
    0x8A: _long,
    0x47: _float,
    0x85: _tuple1,
    0x86: _tuple2,
    0x87: _tuple3,
    0x74: lambda m: m.stack.append(tuple(m.pop_to_mark())),
    0x5D: lambda m: m.stack.append([]),
    0x8F: lambda m: m.stack.append([]),  # EMPTY_SET
    0x90: _appends,  # ADDITEMS
    0x91: lambda m: m.stack.append(tuple(m.pop_to_mark())),  # FROZENSET
    0x61: _append,
    0x65: _appends,
    0x73: _set_item,
    0x75: _set_items,
    0x93: _global,
    0x52: _build_new,  # REDUCE
    0x81: _build_new,  # NEWOBJ
    0x62: _set_state,
}
_TABLE: tuple[Callable[[_Machine], None] | None, ...] = tuple(_OPERATIONS.get(code) for code in range(256))
