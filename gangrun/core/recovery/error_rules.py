"""What the text of a failure tells: matches it with the rows of ``failure_texts``, and compares the ranks' ends.

Rows stand in order: the first that matches counts. ``rule_of`` tries kind and message, the causes of the exception,
how the process ended, and each line of its stderr. A row that fits a victim too counts only if no other text tells
more.

A line of stderr proves little by itself: libraries write warnings about GPUs and networks on healthy nodes too. So
ranks that are stopped tell which rows their own lines match, and ``compared`` leaves out what ranks on several nodes
showed. An exception needs no comparison.

A mark is the name of the row that a rank's own words matched, and ``shown`` has the rows of its stderr. The rank's
agent makes both: to match one end takes milliseconds, and the supervisor may hear of thousands at once. They stay when
texts are dropped, so that all ends can be compared.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import zip_longest

from gangrun.core.evidence import ErrorReport, RankExit
from gangrun.core.model import Cause, Cure
from gangrun.core.nodeset import fold, natural_sort
from gangrun.core.recovery import speakers
from gangrun.core.recovery.failure_texts import RULES, TEST, VICTIMS, Rule
from gangrun.core.text import cut_middle, is_remark, signal_name

TEXT_MAX_CHARS = 4000  # of one text, half from its beginning and half from its end
SHELL_SIGNAL_BASE = 128  # a shell says 128 + N for a child killed by signal N
NO_RULE = "-"  # the mark of an end whose own words matched no row
SHOWN_MAX_COUNT = 8  # rows of a rank's stderr that are sent
_SENT = frozenset({1, 2, 9, 15})  # signals that a process does not send itself
_FAULTS = frozenset({4, 7, 8, 11})  # SIGILL, SIGBUS, SIGFPE, SIGSEGV: a peer's end raises none of them
_KILLS = {Cause.KILLED, Cause.OOM}
_NUMBER = re.compile(r"\d+")
LAST = "!"  # after an entry of ``shown``: it stands in the last line that tells something, or after it
SIGABRT = 6
_LAST_WORDS = re.compile(
    r"^(\[rank\d+\]:)?\s*what\(\): | WARN (Call to |Cuda failure)|^F(\d{4}){1,2} .*(Check failed|Non-OK-status): "
    r"|^[\d: .-]*F \S+\.(cc|cpp|h):\d+\] |^(\[rank\d+\]: )?([a-z_]\w*\.)*[A-Z]\w*(Error|Exception|Timeout|Closed): \S"
)  # said by what fails then
_FILLS = re.compile(
    r"^(\[rank\d+\]:)?\s*($|terminate called after|abort(ed|ing)\b|\S+\.(cu|cc|cpp|h):\d+$|exception raised from"
    r"|frame #|@ +0x|[=*-]{4,}|compile with|for debugging consider|(cuda|hip) kernel errors might"
    r"|sig[a-z]{3,5}$|\[\[\{\{node |\d* *\| |compilation terminated|traceback \(most recent"
    r"|(this|it) (is|may|might|can|could|usually|error)\b|(possible|solution|hint|note|please|see|try|check)\b"
    r"|make sure|for (more|full|further|detailed) (information|help\w*|details)|website at|pass --help|usage: "
    r"|type '\S+ --help|available options|set the environment variable hydra"  # advice
    r"|(stack ?trace|backtrace|runtime stack|require stack)\b|goroutine \d|(current )?thread 0x|<no python frame>"
    r"|python runtime state|failing in thread|in expression starting at|last command: |execution halted"
    r"|at [\w.$<>]+\(|@ \w|\[\d+\] [a-z_.]|\[bt\]|(file|function|line): ?\S|\(rank \d+, host|[()\[\]{}]+$"
    r"|[\u2500-\u257f ]+$|\*\*\* (check failure stack trace|end of error)|(\[\S+\] )?\*\*\* +and potentially"
    r"|\[\S+:\d+\] (failing at address|\*\*\* |signal code|\[ *\d+\])"  # where it stood
    r"|srun: (launch/|job step aborted)|clush: |exited with exit code)|assertion `0' failed"
    r"|core dumped|signal: aborted"
)  # comes after what a process said last, and tells no more, or how to mend it
_FRAME = re.compile(r'^(\[rank\d+\]:)?\s*file "[^"]+", line \d+')
_OF_SOURCE = re.compile(r"^(\[rank\d+\]:)?\s{2}")  # comes after the line of a frame
_FINALIZES = re.compile(r"multiprocessing/util\.py\", line \d+, in (_run_finalizers|_exit_function)")
_WARNED = re.compile(r" WARN ")  # NCCL: what fails, if a chain of the functions that return its error comes next
_RETURNED = re.compile(r" INFO \S+:\d+ -> [1-9]\d*\b")
_NCCL = re.compile(r"NCCL|DistBackendError")

BY_NAME = {rule.name: rule for rule in RULES}
OF_ONE_GPU = frozenset({"gpu-ecc", "gpu-lost"})  # said by the rank that has it, of no other part of its node
# What peers say of a lost rank, and ranks that are ended, they all say; all else on all nodes at once ended none.
TEXTS_KEPT_COUNT = 64  # and raise the same errors
COMPARED = tuple(rule for rule in RULES if rule.few not in VICTIMS and rule.cause is not Cause.KILLED)
_VAGUE = frozenset(
    {rule.name for rule in RULES if rule.few in (*VICTIMS, TEST)}
    | {"save-failed", "nccl-cuda", "nccl-usage", "nccl-internal", "gpu-other", "fabric-other", "service-other"}
)
_FATAL = frozenset(
    {"fabric", "fabric-other", "container", "open-files", "worker-memory", "bus-error", "killed"}
)  # who writes these lines ends the process, whatever it writes after them
_NO_ROOM = frozenset({"storage-full", "quota", "local-disk"})
_FIRST = frozenset({"ib-completion", "teardown"})  # by its form alone, and what is written after it follows from it
# Beside an exception only these count in stderr, where warnings of all kinds stand too. Beside a plain one they count
# in its causes only: code that handles an error may have a bug of its own.
_BESIDE = frozenset(
    {Cause.HARDWARE, Cause.NETWORK, Cause.CPU, Cause.RANK_ERROR, Cause.ENVIRONMENT, Cause.GPU_MEMORY}
    | {Cause.KILLED, Cause.OOM}
)
# These say only that another process failed, whose own words are among the last lines of stderr.
_OF_ANOTHER = frozenset({"ChildFailedError", "CalledProcessError", "ProcessRaisedException", "ProcessExitedException"})
_PLAIN_KINDS = frozenset(
    {"ValueError", "TypeError", "KeyError", "IndexError", "AttributeError", "NameError", "ZeroDivisionError"}
    | {"StopIteration", "UnboundLocalError", "RecursionError", "FloatingPointError", "OverflowError"}
)  # fmt: skip
_PLAIN_KINDS_LOWER = frozenset(map(str.lower, _PLAIN_KINDS))
# What torch raises for a bug as a RuntimeError: by shapes, types and the use of its own interface.
_PLAIN_WORDS = re.compile(
    r"size of tensor|sizes of tensors|shapes? .{0,60}(cannot be|invalid for|mismatch)|must have the same (number|size)"
    r"|expected (scalar type|all tensors|\d+d|\d+-d|input\b|stride|dtype|object of|a .{0,30}tensor|to have finished)"
    r"|stack expects each tensor|loading state_dict|(does|do) not require grad|backward through the graph"
    r"|inplace operation"
    r"|marked as ready twice|weight of size|size mismatch|not implemented for '|should be the same|exhausted all inputs"
    r"|dimension (out of range|specified as)|dtype .{0,40}(match|but)|out of bounds|is invalid for input of size",
    re.IGNORECASE,
)
_SIZE = r"([\d.]+) ([gm])ib"
_HOLDER = re.compile(rf"process (\d+) has {_SIZE} memory in use", re.IGNORECASE)
_TOTAL = re.compile(rf"{_SIZE} total capacity|total capaci?ty of {_SIZE}", re.IGNORECASE)
_FREE = re.compile(rf"{_SIZE} free|of which {_SIZE} is free", re.IGNORECASE)
_OWN = re.compile(rf"this process has {_SIZE} memory in use", re.IGNORECASE)
_OF_TORCH = re.compile(
    rf"{_SIZE} (?:reserved in total|already allocated)|{_SIZE} is allocated by pytorch", re.IGNORECASE
)
FOREIGN_MIN_SHARE = 0.3  # of the GPU's memory: contexts of CUDA hold less


def marked(died: RankExit, stderr: Iterable[str] | None = None) -> RankExit:
    """The same end with its marks. ``stderr``: what it had written, if its tail does not have it."""
    if died.mark:
        return died
    own, lines = _own(died), died.tail if stderr is None else stderr
    entries = tuple(_entries(lines, compared_only=died.by_us))
    return replace(died, mark=own.name if own is not None else NO_RULE, shown=entries[:SHOWN_MAX_COUNT])


def rule_of(died: RankExit) -> Rule | None:
    """The row that this end matches: by its marks, else by its texts. Of stderr the row that stands first counts."""
    died = marked(died)
    own, said = BY_NAME.get(died.mark), next(_counting(died), None)
    if own is not None and died.error is None and own.name in _FIRST:
        return own
    known = [rule for rule in ((own, said) if died.error is not None else (said, own)) if rule is not None]
    if known and known[0].name == "save-failed":  # for want of room, if any program beside it found none
        known = [rule for rule in map(_rule_shown, died.shown) if rule is not None and rule.name in _NO_ROOM] or known
    return next((rule for rule in known if rule.name not in _VAGUE), known[0] if known else None)


def _counting(died: RankExit) -> Iterator[Rule]:
    """The rows of its stderr that may tell why it ended, those of its last lines first if there was no exception.
    Beside an exception that says that a peer was lost, none does.
    """
    own, beside = BY_NAME.get(died.mark), died.error is not None and _class_of(died.error) not in _OF_ANOTHER
    if is_plain(died) or (beside and _lost_a_peer(died, own)):
        return
    shown = died.shown if beside else sorted(died.shown, key=_by_place)
    if died.error is None and _ends_as_victim(shown):
        shown = [entry for entry in shown if entry.endswith(LAST)]
    if died.error is None and died.step >= 0:  # what keeps a rank from its first step was lived through
        shown = [entry for entry in shown if entry.endswith(LAST) or not _is_at_start(entry)]
    for rule in filter(None, map(_rule_shown, shown)):
        if rule.cause in _KILLS if is_killed(died) else not beside or _counts_beside(rule):
            yield rule


def _is_at_start(entry: str) -> bool:
    rule = _rule_shown(entry)
    return rule is not None and rule.many is Cure.END


def _ends_as_victim(shown: Sequence[str]) -> bool:
    """Do its last words only say that it lost a peer? What it wrote before that was said by a rank that lived on."""
    last = [rule for entry in shown if entry.endswith(LAST) and (rule := _rule_shown(entry)) is not None]
    return bool(last) and all(rule.few in VICTIMS for rule in last)


def _lost_a_peer(died: RankExit, own: Rule | None) -> bool:
    """Does its exception say so?"""
    if own is not None:
        return own.few in VICTIMS and own.name != "nccl-system"
    return died.error is not None and died.error.collective


def _by_place(entry: str) -> tuple[int, bool]:
    """The last lines first; after them what ends the process anyway, and what follows from others, such as a crash as
    the interpreter ends.
    """
    rule = _rule_shown(entry)
    is_end = rule is not None and (rule.cause is Cause.TEARDOWN or rule.name == "interrupt")
    return 2 if is_end else int(rule is not None and rule.name in _FATAL), not entry.endswith(LAST)


def _rule_shown(entry: str) -> Rule | None:
    return BY_NAME.get(entry.partition("/")[0])


def is_killed(died: RankExit) -> bool:
    """Did somebody end it, whatever it had written before?"""
    return (died.signal or (died.code or 0) - SHELL_SIGNAL_BASE) in _SENT


def _counts_beside(rule: Rule) -> bool:
    return rule.cause in _BESIDE and rule.name != "gpu-other"


def _own(died: RankExit) -> Rule | None:
    """The row of its exception and the causes of that; without one, of how the process ended."""
    error, last_words = died.error, _last_words(died.tail)
    texts = [f"{error.kind}: {error.message}", *error.chain] if error is not None else []
    if error is None or _NCCL.search(texts[0]):
        texts += last_words
    if error is None:
        texts.append(how_it_ended(died))
    trace, is_bug = (error.traceback.lower() if error is not None else ""), is_plain(died)
    if _FINALIZES.search(trace or "\n".join(died.tail).lower()):
        return BY_NAME["teardown"]
    found = [
        _match(cut_middle(text, TEXT_MAX_CHARS), "" if i else trace, bool(i) and is_bug) for i, text in enumerate(texts)
    ]
    known = [rule for rule in found if rule is not None]
    if error is None and known and known[0].name == "ib-completion":
        return known[0]  # what NCCL's own teardown runs into then
    rule = next((rule for rule in known if rule.name not in _VAGUE), known[0] if known else None)
    if rule is None and (
        any(speakers.speaker_of(line.lower()) is speakers.Speaker.FABRIC for line in last_words)
        or (error is None and speakers.is_of_nccl(_last_line(died)))
    ):
        return BY_NAME["fabric-other"]
    if rule is None and error is None and (head := speakers.head_of(_last_line(died))):
        return None if _is_plain_kind(head.partition(":")[0]) else _by_speaker(head, "\n".join(died.tail).lower(), None)
    return _by_speaker(texts[0], trace, rule) if error is not None and not is_bug else rule


def _last_words(lines: Sequence[str]) -> list[str]:
    """The lines by whose form it can be seen that what they tell ended the process."""
    return [
        line
        for line, after in zip_longest(lines, lines[1:], fillvalue="")
        if _LAST_WORDS.search(line) or (_WARNED.search(line) and _RETURNED.search(after))
    ]


def _by_speaker(text: str, trace: str, rule: Rule | None) -> Rule | None:
    """The row for an exception if who raised it tells more than its words, or is all that there is to tell."""
    text = cut_middle(text, TEXT_MAX_CHARS).lower()
    match rule.name if rule is not None else "":
        case "":
            return BY_NAME.get(speakers.place(text, trace))
        case "storage-full" if "/" not in text and speakers.is_of_memory(trace):
            return BY_NAME["shared-memory"]
        case "import" if "cannot import name" in text and speakers.is_of_package(trace):
            return BY_NAME["library"]  # two packages that do not fit each other
        case _:
            return rule


def is_native(died: RankExit) -> bool:
    """Did a program or library that is not Python's say last why it ended, in words that no row knows?"""
    said = [line.lower() for line in died.tail]
    return died.error is None and not any(map(speakers.is_pythons, said)) and speakers.is_native(_last_line(died))


def _last_line(died: RankExit) -> str:
    """The last line that tells something, of lower case; "" if there is none."""
    said = [line.lower() for line in died.tail if not is_remark(line)]
    return said[_last_told(said)] if said else ""


def is_plain(died: RankExit) -> bool:
    """Is it an exception that Python itself raises for a bug, or torch for the use of its interface?"""
    error = died.error
    if error is None:
        return False
    kind = _class_of(error)
    return kind in _PLAIN_KINDS or (kind == "RuntimeError" and _PLAIN_WORDS.search(error.message[:200]) is not None)


def _is_plain_kind(kind: str) -> bool:
    return kind.rpartition(".")[2] in _PLAIN_KINDS_LOWER


def _class_of(error: ErrorReport) -> str:
    return error.kind.rpartition(".")[2]


@lru_cache(maxsize=TEXTS_KEPT_COUNT)
def _match(text: str, trace: str, beside: bool) -> Rule | None:
    text = text.lower()  # four times as fast as patterns that ignore the case
    for rule in RULES:
        if (
            (not beside or _counts_beside(rule))
            and _patterns()[rule.name].search(text)
            and not (rule.not_of and speakers.speaker_of(text, trace) in rule.not_of)
        ):
            return BY_NAME["foreign-process"] if rule.cause is Cause.GPU_MEMORY and foreign_process(text) else rule
    return None


def _entries(lines: Iterable[str], *, compared_only: bool) -> Iterator[str]:
    """Each row that matches a line, in the order of the table, with a checksum of the words that it matched: ranks that
    write the same write the same words, but for numbers. ``!``: in one of the last lines.
    """
    said = [line.lower() for line in lines if not is_remark(line)]
    matched = [_matched(line, compared_only) for line in said]
    placed = ["" if words else speakers.place_line(line) for line, words in zip(said, matched, strict=True)]
    names = set[str]().union(*matched, placed)
    if names == {""}:
        return
    last_at = _last_told(said)
    for rule in COMPARED if compared_only else RULES:
        may_be_foreign = rule.cause is Cause.GPU_MEMORY and not names.isdisjoint((rule.name, "foreign-process"))
        name = "foreign-process" if may_be_foreign and any(map(foreign_process, said)) else rule.name
        if names.isdisjoint((rule.name, name)):
            continue
        found = [(at, words[rule.name]) for at, words in enumerate(matched) if rule.name in words]
        found += [(at, name) for at, place in enumerate(placed) if place == name]
        words = {
            f"{name}/{zlib.crc32(_NUMBER.sub('0', one).encode()) & 0xFFFF:04x}": at >= last_at for at, one in found
        }
        yield from (f"{entry}{LAST if is_last else ''}" for entry, is_last in words.items())


def _last_told(said: Sequence[str]) -> int:
    """Where the last line stands that tells more than those before it. Frames of a traceback that was cut do not."""
    for at in range(len(said) - 1, -1, -1):
        is_source = at > 0 and _OF_SOURCE.search(said[at]) and _FRAME.search(said[at - 1])
        if not is_source and not _FRAME.search(said[at]) and not _FILLS.search(said[at]):
            return at
    return 0


@lru_cache(maxsize=speakers.LINES_KEPT_COUNT)
def _matched(line: str, compared_only: bool) -> Mapping[str, str]:
    """The rows that match a line, with the words that each matched; else the row that its speaker and event give."""
    rules = COMPARED if compared_only else RULES
    matched = {
        rule.name: one[0]
        for rule in rules
        if (one := _patterns()[rule.name].search(line))
        and not (rule.not_of and speakers.speaker_of(line) in rule.not_of)
    }
    place = "" if matched else speakers.place_line(line)
    return {place: place} if BY_NAME.get(place) in rules else matched


def prepare() -> None:
    """Compile the patterns while nobody waits: for the first rank that falls it would take a fifth of a restart."""
    _patterns()


@cache
def _patterns() -> dict[str, re.Pattern[str]]:
    return {rule.name: re.compile(rule.pattern, re.MULTILINE) for rule in RULES}


def foreign_process(text: str) -> str:
    """Who holds more of the GPU than the process that found no memory, in words; "" if nobody does."""
    holders = [(_gib(gib, unit), pid) for pid, gib, unit in _HOLDER.findall(text)]
    total, free = _largest(_TOTAL, text), _largest(_FREE, text)
    own = _largest(_OWN, text) or _largest(_OF_TORCH, text)
    if own <= 0 or (not total and not _OWN.search(text)):
        return ""
    held = total - free - own if total else max((gib for gib, _ in holders), default=0.0)
    if held <= own or held < FOREIGN_MIN_SHARE * total:
        return ""
    pid = max(holders)[1] if holders else ""
    return (
        f"process {pid} holds {max(holders)[0]:g} GiB of it" if pid else f"another program holds {held:.1f} GiB of it"
    )


def tells_sizes(text: str) -> bool:
    """Does it say how much memory torch holds? The driver's own error does not."""
    return _OF_TORCH.search(text) is not None or _OWN.search(text) is not None


def _largest(pattern: re.Pattern[str], text: str) -> float:
    """The largest size that the pattern finds, in GiB; 0.0: none."""
    found = [[word for word in groups if word] for groups in pattern.findall(text)]
    return max((_gib(*words) for words in found), default=0.0)


def _gib(number: str, unit: str) -> float:
    return float(number) / (1024 if unit.lower() == "m" else 1)


def how_it_ended(died: RankExit) -> str:
    """``exit code 1`` or ``SIGSEGV (11)``."""
    if died.signal is not None:
        return signal_name(died.signal)
    code = died.code
    if code is None:
        return "an unknown exit code"
    if code > SHELL_SIGNAL_BASE and signal_name(code - SHELL_SIGNAL_BASE).startswith("SIG"):
        return f"exit code {code} (how a shell reports {signal_name(code - SHELL_SIGNAL_BASE)})"
    return f"exit code {code}"


# ---- how far it is spread --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spread:
    """Nodes and ranks that show the same in one failure, and whether the nodes are too many to be each one's own."""

    nodes: tuple[str, ...]
    ranks_count: int
    is_many: bool


def spread_of(first: RankExit, exits: Iterable[RankExit], nodes_count: int, share_max: float) -> Spread:
    """How many of the gang's nodes show what ``first`` shows: the same mark, or without one the same signature."""
    same = {first.rank: first.node} | {other.rank: other.node for other in exits if _is_same(first, other)}
    nodes = tuple(natural_sort(set(same.values())))
    return Spread(nodes, len(same), len(nodes) > 1 and len(nodes) > share_max * nodes_count)


def _is_same(one: RankExit, other: RankExit) -> bool:
    rule, other_rule = rule_of(one), rule_of(other)
    if rule is not None:
        return other_rule is not None and (other_rule is rule or other_rule.cause is rule.cause)
    if one.error is not None and other.error is not None:
        return one.error.signature == other.error.signature
    return one.error is other.error and (one.code, one.signal) == (other.code, other.signal)


def compared(exits: tuple[RankExit, ...], stopped: Mapping[str, tuple[str, ...]]) -> tuple[RankExit, ...]:
    """The ends without what their stderr had in common with that of ranks on other nodes: that is what all ranks write
    at their start. ``stopped``: what ranks showed that we stopped, and on which nodes. What ranks wrote last before
    they ended without an exception counts on many nodes too, if no rank lived on with it. And what some nodes show
    explains no end that ranks on other nodes had without it.
    """
    exits = tuple(map(marked, exits))
    seen, ends = dict(stopped), dict[tuple[str, str], set[str]]()
    for died in exits:
        for entry in died.shown:
            if not _ended_it(died, entry):
                words = entry.removesuffix(LAST)
                seen[words] = two_of(seen.get(words, ()), died.node)
        for entry in {"", *died.shown}:
            ends.setdefault((own_end(died), entry.removesuffix(LAST)), set()).add(died.node)

    def is_own(died: RankExit, entry: str) -> bool:
        others = seen.get(entry.removesuffix(LAST), ())
        return _rule_shown(entry) not in COMPARED or all(node == died.node for node in others)

    def explains(died: RankExit, entry: str) -> bool:
        """Not if a rank on another node ended in the same way without it."""
        end = own_end(died)
        return not end or ends[end, entry.removesuffix(LAST)] == ends[end, ""]

    return tuple(
        replace(died, shown=tuple(entry for entry in died.shown if is_own(died, entry) and explains(died, entry)))
        if died.shown
        else died
        for died in exits
    )


def own_end(died: RankExit) -> str:
    """How it ended, if a rank that lost this one would end in another way; else ""."""
    error = died.error
    if error is not None:
        return "" if error.collective or _NCCL.search(f"{error.kind}: {error.message}") else error.signature
    is_own = died.signal in _FAULTS or died.code not in (None, 0, 1)
    return how_it_ended(died) if is_own and not is_killed(died) else ""


def _ended_it(died: RankExit, entry: str) -> bool:
    """Is it what a rank wrote last, just before it ended without an exception?"""
    by_itself = died.signal in (None, SIGABRT) and not died.by_us
    return (
        (entry.endswith(LAST) or entry.partition("/")[0] in _FATAL)
        and died.written_at > 0
        and by_itself
        and (died.error is None or _class_of(died.error) in _OF_ANOTHER)
    )


def two_of(nodes: tuple[str, ...], node: str) -> tuple[str, ...]:
    """With this node, if there are fewer than two: another than any node is among two."""
    return nodes if node in nodes or len(nodes) > 1 else (*nodes, node)


def concluded(rule: Rule, cure: Cure, spread: Spread, first: RankExit, *, is_compared: bool) -> str:
    """What the row means for the run, in words."""
    nodes, count = fold(spread.nodes), len(spread.nodes)
    where = f", on {count} nodes at once" if count > 1 else f", on {nodes} only"
    if count == 1 and not is_compared:
        where = ""
    foreign = foreign_process(first.error.message) if rule.name == "foreign-process" and first.error else ""
    means = _MEANING[cure].format(nodes=nodes, are="is" if count == 1 else "are")
    return f"this means {rule.says}{f' ({foreign})' if foreign else ''}{where}: {means}"


_MEANING = {
    Cure.RESTART: "the code or {nodes} {are} at fault",
    Cure.ONCE: "another node would not help, and a second failure of this kind ends the run",
    Cure.END: "a restart would not help",
    Cure.WAIT: "this often passes, so gangrun tries again until the budget is spent",
    Cure.EXCLUDE: "{nodes} {are} at fault",
    Cure.MOVE: "the code or {nodes} {are} at fault",
    Cure.TEST: "the code or a device of {nodes} is at fault",
}
