"""A batch script of the user's: its #SBATCH lines, and the ``gangrun run`` line with what the shell does before it.

``gangrun submit train.sbatch`` makes a run of it. The #SBATCH lines become options of ``gangrun submit``. The body
before the ``gangrun run`` line goes into the batch script of every job, and the job's shell expands the words of
COMMAND, so variables and arrays of the script work. Nothing after that line can run: the run may go on in another job.

Text only: nothing here runs a line of the script, or looks at its syntax.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gangrun.config.slurm_options import SBATCH_REFUSED
from gangrun.errors import UserError

SIZE_MAX_BYTES = 1 << 20
SPREAD_MAX_COUNT = 1000  # a variable that holds itself ends there
# What bash reads when it is started as by a login.
LOGIN = """[ ! -r /etc/profile ] || . /etc/profile
for gangrun_file in ~/.bash_profile ~/.bash_login ~/.profile; do
  if [ -r "$gangrun_file" ]; then . "$gangrun_file"; break; fi
done"""
SHELLS = ("bash", "sh", "dash", "ksh")
_SHORT = {
    "A": "account", "a": "array", "b": "begin", "C": "constraint", "c": "cpus-per-task", "D": "chdir",
    "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "i": "input", "J": "job-name",
    "k": "no-kill", "L": "licenses", "M": "clusters", "m": "distribution", "N": "nodes", "n": "ntasks",
    "O": "overcommit", "o": "output", "p": "partition", "Q": "quiet", "q": "qos", "S": "core-spec",
    "s": "oversubscribe", "t": "time", "v": "verbose", "W": "wait", "w": "nodelist", "x": "exclude",
    "B": "extra-node-info",
}  # fmt: skip
_VALUELESS = {
    "contiguous", "exclusive", "get-user-env", "hold", "ignore-pbs", "nice", "no-kill", "no-requeue", "overcommit",
    "oversubscribe", "parsable", "quiet", "reboot", "requeue", "spread-job", "test-only", "use-min-nodes", "verbose",
    "wait",
}  # fmt: skip
_SAME = {
    "nodes", "gpus-per-node", "gres", "partition", "account", "qos", "time", "exclude", "nodelist", "constraint", "mem",
    "reservation", "dependency",
}  # fmt: skip
_FATAL = {"array", "clusters", "cluster", "wrap", "kill-on-invalid-dep", "test-only"}
_TASKS = ("ntasks-per-node", "tasks-per-node", "ntasks")
_SILENT = {"nodes", "cpus-per-task", "job-name", "chdir", "exclusive", "export", "signal", "quiet", "verbose", *_TASKS}
_LATER = re.compile(r"(echo|printf|date|wait|exit|hostname|:|true)\b")
_WORD = re.compile(
    r"""(?: \\. | '[^']*' | "(?:\\.|[^"\\])*" | \$\((?:[^()]|\([^()]*\))*\) | `[^`]*` | \$\{[^}]*\}
        | [^\s'"\\`;&|<>()] )+""",
    re.VERBOSE | re.DOTALL,
)
_HERE = ("$SLURM_SUBMIT_DIR",)
ASSIGNED = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)


@dataclass(frozen=True, slots=True)
class ShellLine:
    """One command line, its continuation lines joined; ``rest`` begins with an operator such as a pipe, or is ""."""

    number: int
    last: int
    text: str
    words: tuple[str, ...]
    rest: str


@dataclass(frozen=True, slots=True)
class SlurmOption:
    """One option of an #SBATCH line, by its long name."""

    number: int
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class SlurmScript:
    """A batch script as text."""

    path: Path
    text: str
    options: tuple[SlurmOption, ...]
    lines: tuple[ShellLine, ...]

    def place(self, number: int) -> str:
        """Where a line stands."""
        return f"{self.path}:{number}"


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """What ``gangrun submit`` makes of a script."""

    options: tuple[str, ...]  # of gangrun submit
    setup: str  # the shell text before the line
    words: tuple[str, ...]  # after "gangrun run", as they stand in the script
    notes: tuple[str, ...] = field(default=())


def read_script(word: str) -> SlurmScript | None:
    """The batch script that ``word`` names; None if it names none: a file with #SBATCH lines that a shell reads."""
    path = Path(word)
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_MAX_BYTES)
        text = data.decode()
    except (OSError, UnicodeDecodeError, ValueError):
        return None
    if not text.startswith("#!") or not re.search(r"^#SBATCH\s", text, re.MULTILINE):
        return None
    shell = text.splitlines()[0][2:].split()
    names = [Path(one).name for one in shell if not one.startswith("-")]
    if not names or names[-1] not in SHELLS:
        raise UserError(
            "usage", f"{path}:1: {' '.join(shell)} is not bash or sh", "gangrun submit reads scripts of those"
        )
    return SlurmScript(path, text, tuple(_options(path, text)), tuple(shell_lines(text)))


def _options(path: Path, text: str) -> Iterator[SlurmOption]:
    """Slurm reads these lines up to the first command."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            return
        if re.match(r"#SBATCH\s", line):
            try:
                words = shlex.split(line[len("#SBATCH") :], comments=True)
            except ValueError as error:
                raise UserError("usage", f"{path}:{number}: {error}", "write the option as sbatch takes it") from error
            yield from (SlurmOption(number, name, value) for name, value in sbatch_words(words))


def sbatch_words(words: list[str]) -> Iterator[tuple[str, str | None]]:
    """(long name, value) of options as sbatch and srun take them."""
    left = list(words)
    while left:
        word = left.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            given = value if equals else None
        else:
            name, given = _SHORT.get(word[1:2], word), word[2:].removeprefix("=") or None
        if given is None and name not in _VALUELESS and left and not left[0].startswith("-"):
            given = left.pop(0)
        yield name, given


def shell_lines(text: str) -> Iterator[ShellLine]:
    """The command lines of a script; comments and empty lines are none."""
    number, at = 1, 0
    while at < len(text):
        end = _line_end(text, at)
        whole = text[at:end]
        joined = re.sub(r"\\\n[ \t]*", " ", whole).strip()
        if joined and not joined.startswith("#"):
            words, rest = split_words(joined)
            yield ShellLine(number, number + whole.count("\n"), joined, words, rest)
        number, at = number + whole.count("\n") + 1, end + 1


def _line_end(text: str, at: int) -> int:
    """Where the command line that begins here ends: at a line break that is neither quoted nor escaped."""
    quote, fresh = "", True
    while at < len(text):
        char = text[at]
        if char == "\\" and quote != "'":
            at += 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and fresh:
            end = text.find("\n", at)
            return len(text) if end < 0 else end
        elif char == "\n":
            return at
        fresh = char.isspace()
        at += 1
    return at


def split_words(text: str) -> tuple[tuple[str, ...], str]:
    """The words as they are written, quotes kept, and what follows from the first operator on."""
    words: list[str] = []
    at = 0
    while True:
        at += len(text[at:]) - len(text[at:].lstrip())
        if text[at : at + 1] in ("", "#"):
            return tuple(words), ""
        if (match := _WORD.match(text, at)) is None:
            return tuple(words), text[at:]
        if match.group().isdecimal() and text[match.end() : match.end() + 1] in ("<", ">"):
            return tuple(words), text[at:]  # a redirection such as 2>&1
        words.append(match.group())
        at = match.end()


def literal(word: str) -> str | None:
    """What the shell makes of a word; None if that depends on variables, files, or a command."""
    bare = re.sub(r"\\.|'[^']*'", "", word, flags=re.DOTALL)
    unquoted = re.sub(r'"[^"]*"', "", bare)
    if re.search(r"[$`]", bare) or re.search(r"[*?\[{]|^~", unquoted):
        return None
    parts = shlex.split(word)
    return parts[0] if len(parts) == 1 else None


def run_words(line: ShellLine) -> tuple[str, ...] | None:
    """The words after ``gangrun run``; None if the line is no such line."""
    words = _unassigned(line.words)
    words = words[1:] if words[:1] == ["exec"] else words
    first = Path(words[0]).name if words else ""
    if re.fullmatch(r"python[0-9.]*", first) and words[1:3] == ["-m", "gangrun"]:
        first, words = "gangrun", words[2:]
    return tuple(words[2:]) if first == "gangrun" and words[1:2] == ["run"] else None


def _unassigned(words: tuple[str, ...]) -> list[str]:
    """A command without the variables that are set for it."""
    count = next((at for at, word in enumerate(words) if not ASSIGNED.match(word)), len(words))
    return list(words[count:])


_NAME = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", re.ASCII)
_BARE = re.compile(r"(?<![\w${])([A-Za-z_]\w*)", re.ASCII)
_PRODUCT = re.compile(r"\$\(\(([\w${}* ]+)\)\)", re.ASCII)
_FROM_SBATCH = {
    "SLURM_NNODES": ("nodes", r"(\d+)"),
    "SLURM_JOB_NUM_NODES": ("nodes", r"(\d+)"),
    "SLURM_GPUS_ON_NODE": ("gpus-per-node", r"(?:\w+:)?(\d+)"),
}


def plain_value(script: SlurmScript, word: str, variables: Mapping[str, str], depth: int = 4) -> str | None:
    """What a word will be in the job; None if only the job can tell.

    A variable counts if the script sets it once, to such a word, or if it is in the user's environment and the script
    does not set it. Of Slurm's own, numbers of nodes and GPUs are known if #SBATCH lines tell them. ``$((A * B))`` is.
    """
    if (found := literal(word)) is not None:
        return found
    if "'" in word or "\\" in word or depth == 0:
        return None
    missing = False

    def known(match: re.Match[str]) -> str:
        nonlocal missing
        name = match.group(1) or match.group(2)
        sets = [one for line in script.lines for one in line.words if re.match(rf"{name}\+?=", one)]
        if len(sets) == 1 and sets[0].startswith(name + "="):
            value = plain_value(script, sets[0].partition("=")[2] or "''", variables, depth - 1)
        elif sets or name.startswith("SLURM_"):
            value = None if sets else _told_by_sbatch(script, name)
        else:
            value = variables.get(name)
        missing = missing or value is None
        return value or ""

    def product(match: re.Match[str]) -> str:
        """A name may stand without $ there."""
        nonlocal missing
        factors = [one.strip() for one in _NAME.sub(known, _BARE.sub(r"${\1}", match.group(1))).split("*")]
        whole = all(one.isdecimal() and one.isascii() for one in factors)
        missing = missing or not whole
        return str(math.prod(map(int, factors))) if whole else ""

    filled = _NAME.sub(known, _PRODUCT.sub(product, word))
    return None if missing or re.search(r"[$`]", filled) else filled.replace('"', "")


def _told_by_sbatch(script: SlurmScript, name: str) -> str | None:
    """A number that Slurm sets in the job, as the script asks for it."""
    option, pattern = _FROM_SBATCH.get(name, ("", ""))
    values = [one.value or "" for one in script.options if one.name == option]
    match = re.fullmatch(pattern, values[-1], flags=re.ASCII) if values else None
    return match.group(1) if match else None


def spread(script: SlurmScript, words: Iterable[str], variables: Mapping[str, str]) -> list[str]:
    """The words of a launch line as the shell splits its variables, up to the training script.

    An unquoted variable or an array that holds several words becomes those, if the script sets it once. What follows
    the training script stays as it is: the job's shell reads that.
    """
    left, done = list(words), list[str]()
    for _ in range(SPREAD_MAX_COUNT):
        if not left or names_script(done):
            break
        held = _several(script, left[0], variables)
        if held is None or len(held) == 1:
            done.append(left.pop(0))
        else:
            left[:1] = held
    return [*done, *left]


def names_script(words: Sequence[str]) -> bool:
    """Do these words of a launch line end with the training script: a .py file, or a module after ``-m``?"""
    first, option, last = ("", "", "", *words)[-3:]
    starts_python = re.fullmatch(r"python[0-9.]*", Path(first).name) is not None  # its module may be a launcher
    return last.endswith(".py") or (option in ("-m", "--module") and last[:1] not in '-$"' and not starts_python)


def _several(script: SlurmScript, word: str, variables: Mapping[str, str]) -> tuple[str, ...] | None:
    """The words that an unquoted variable or an array holds; None for any other word, and if only the job can tell."""
    array = re.fullmatch(r'("?)\$\{([A-Za-z_]\w*)\[@\]\}\1', word, flags=re.ASCII)
    match = array or re.fullmatch(r"(\$)\{?([A-Za-z_]\w*)\}?", word, flags=re.ASCII)
    if match is None:
        return None
    name = match.group(2)
    sets = re.findall(rf"^(?:.*[\s;])?{name}(\+?=.?)", script.text, flags=re.MULTILINE)
    if not sets and not array and not name.startswith("SLURM_") and name in variables:
        return tuple(map(shlex.quote, variables[name].split()))
    if len(sets) != 1 or (sets[0] == "=(") != bool(array):
        return None
    if array:
        found = re.search(rf"^(?:.*[\s;])?{name}=\(([^()]*)\)", script.text, flags=re.MULTILINE)
        lines = re.sub(r"\\\n", " ", found.group(1)).splitlines() if found else ["$("]
    else:
        value = next((one for line in script.lines for one in line.words if one.startswith(f"{name}=")), "=$(")
        value = value.partition("=")[2]
        quoted = value[:1] in ("'", '"') and value[-1:] == value[:1]
        lines = [re.sub(r"\\\n[ \t]*", " ", value[1:-1] if quoted else value).strip()]
    pairs = [split_words(line) for line in lines]
    return None if any(rest for _, rest in pairs) else tuple(word for words, _ in pairs for word in words)


def option_value(script: SlurmScript, word: str, variables: Mapping[str, str]) -> str:
    """A word of the options in the ``gangrun run`` line, which gangrun must know before the job runs."""
    value = plain_value(script, word, variables)
    if value is None:
        way = "write the value there, or give the option to gangrun submit"
        raise UserError("usage", f"{script.path}: gangrun must know what {word} is before the job runs", way)
    return value


def spares_of(options: Iterable[str], used: str | None) -> tuple[str, ...]:
    """Nodes that the ``gangrun run`` line does not use are spares, as they are if sbatch takes the script."""
    held = next((word.partition("=")[2] for word in options if word.startswith("--nodes=")), "1")
    count = int(held) - int(used) if used is not None and used.isdecimal() and held.isdecimal() else 0
    return (f"--spares={count}",) if count > 0 else ()


def refuse_unclear(script: SlurmScript, directory: str | None) -> None:
    """The supervisor looks at the checkpoint directory itself, and does not follow the script to where it goes."""
    if directory is None or directory.startswith(("/", "~")):
        return
    gone = [line.number for line in script.lines if line.words[:1] in (("cd",), ("pushd",)) and line.words[1:] != _HERE]
    gone += [one.number for one in script.options if one.name == "chdir" and one.value != "."]
    if gone:
        words = f"{script.place(min(gone))} leaves this directory, and --checkpoint-dir {directory} begins in it"
        raise UserError("usage", words, "write the whole path of the checkpoint directory")


def script_run(script: SlurmScript, arguments: Iterable[str]) -> ScriptRun:
    """What to submit; ``UserError`` with the line if the script cannot be run again in job after job.

    Args:
        script: the batch script.
        arguments: the words after its name, which it finds as ``$1`` and so on.
    """
    found = [line for line in script.lines if run_words(line) is not None]
    if not found:
        way = f"gangrun convert {script.path} prints the script with such a line"
        raise UserError("usage", f"{script.path} has no gangrun run line to submit", way)
    if len(found) > 1:
        way = "keep one of them, and submit a script for each run"
        raise UserError("usage", f"{script.place(found[1].number)}: a second gangrun run line", way)
    line = found[0]
    words = run_words(line)
    assert words is not None
    if line.rest:
        way = "let the line end with the command; gangrun writes the output of ranks to logs/ in the run directory"
        raise UserError("usage", f"{script.place(line.number)}: {line.rest.split()[0]!r} follows the command", way)
    later = lines_after(script, line)
    if kept := next((one for one, matters in later if matters), None):
        way = "move it into a job of its own (-d), or before that line: the run may continue in another job"
        raise UserError("usage", f"{script.place(kept.number)}: {kept.text!r} follows the gangrun run line", way)
    notes = [f"{script.place(one.number)}: {one.text!r} never runs, as it follows gangrun run" for one, _ in later]
    options, setup, told = _asked(script)
    setup += _body(script, line, tuple(arguments))
    return ScriptRun(options, setup, words, (*told, *notes))


def lines_after(script: SlurmScript, line: ShellLine) -> list[tuple[ShellLine, bool]]:
    """The command lines that follow, each with whether it does more than print something or end the script."""
    later = [one for one in script.lines if one.number > line.number]
    return [(one, bool(one.rest) or not _LATER.match(one.text)) for one in later]


def _body(script: SlurmScript, line: ShellLine, arguments: tuple[str, ...]) -> str:
    text = "\n".join(
        "" if re.match(r"#SBATCH\s", one) else one for one in script.text.splitlines()[1 : line.number - 1]
    ).strip("\n")
    login = script.text.splitlines()[0].split()[1:]
    before = [LOGIN] if any(re.fullmatch(r"-\w*l\w*|--login", word) for word in login) else []
    given = [f"set -- {shlex.join(arguments)}"] if arguments else []
    count = len(line.words) - len(_unassigned(line.words))
    exports = [f"export {word}" for word in line.words[:count]]
    return "\n".join([*before, *given, text, *exports]).strip("\n") or ":"  # the shell's word for nothing


def _asked(script: SlurmScript) -> tuple[tuple[str, ...], str, list[str]]:
    """(options of gangrun submit, shell text that stands for options, what was left out and why)."""
    given = {one.name: one for one in script.options}
    words: list[str] = []
    notes: list[str] = []
    setup = ""
    for one in given.values():
        place, spelled = script.place(one.number), f"--{one.name}" + (f"={one.value}" if one.value is not None else "")
        if one.name in _FATAL or (one.name == "export" and one.value not in (None, "ALL")):
            raise UserError(
                "usage", f"{place}: {spelled} does not go with gangrun submit", SBATCH_REFUSED.get(one.name, "")
            )
        if one.name in _SAME and one.value is not None:
            words += _nodes(one.value) if one.name == "nodes" else (f"--{one.name}={one.value}",)
        elif one.name == "chdir" and one.value is not None:
            setup = f"cd {shlex.quote(one.value)} || exit\n"
        elif one.name == "job-name" and one.value is not None:
            words.append(f"--job-name={one.value}")
        elif one.name == "exclusive" and one.value is None:
            words.append("--exclusive")
        elif one.name == "signal" and (match := re.fullmatch(r"(?:SIG)?(USR[12])(?:@(\d+))?", one.value or "")):
            words += [
                f"--save-signal={match.group(1)}",
                *([f"--save-lead={match.group(2)}s"] if match.group(2) else []),
            ]
        elif one.name == "gpus" and one.value is not None:
            words.append(f"--gpus-per-node={_shared(script, one, given)}")
        elif one.name == "gpus-per-task" and one.value is not None:
            kind, _, count = one.value.rpartition(":")
            gpus = _whole(script, SlurmOption(one.number, one.name, count)) * ranks_per_node(script)
            words.append(f"--gpus-per-node={kind}:{gpus}" if kind else f"--gpus-per-node={gpus}")
        elif one.name in SBATCH_REFUSED:
            if one.name not in _SILENT or one.name == "signal":
                notes.append(f"{place}: {spelled} is left out: {SBATCH_REFUSED[one.name]}")
        elif one.name not in _SILENT:
            words.append(f"--sbatch={one.name}" + (f"={one.value}" if one.value is not None else ""))
    return (*words, *_tasks(script, given)), setup, notes


def _nodes(value: str) -> tuple[str, ...]:
    least, dash, most = value.partition("-")
    return (f"--nodes={most}", f"--min-nodes={least}") if dash and most != least else (f"--nodes={least}",)


def _whole(script: SlurmScript, one: SlurmOption) -> int:
    if one.value is None or not re.fullmatch(r"[1-9]\d*", one.value):
        raise UserError(
            "usage", f"{script.place(one.number)}: --{one.name}={one.value} is not a number", "give a number"
        )
    return int(one.value)


def _shared(script: SlurmScript, one: SlurmOption, given: dict[str, SlurmOption]) -> str:
    """A number for the whole job, as so many on each node."""
    kind, _, count = (one.value or "").rpartition(":")
    total = _whole(script, SlurmOption(one.number, one.name, count))
    nodes = given.get("nodes")
    nodes_count = _whole(script, nodes) if nodes is not None and "-" not in (nodes.value or "") else 0
    if nodes_count == 0 or total % nodes_count:
        way = f"write --nodes and --{'gpus-per-node' if one.name == 'gpus' else 'ntasks-per-node'}"
        words = f"{script.place(one.number)}: --{one.name}={one.value} does not say how many each node has"
        raise UserError("usage", words, way)
    return f"{kind}:{total // nodes_count}" if kind else str(total // nodes_count)


def ranks_per_node(script: SlurmScript) -> int:
    """Tasks of a node, which are its ranks."""
    given = {one.name: one for one in script.options}
    per_node, whole = given.get("ntasks-per-node") or given.get("tasks-per-node"), given.get("ntasks")
    if per_node is not None:
        return _whole(script, per_node)
    if whole is not None:
        return int(_shared(script, whole, given)) if "nodes" in given else _whole(script, whole)
    return 1


def _tasks(script: SlurmScript, given: dict[str, SlurmOption]) -> tuple[str, ...]:
    """CPUs are counted for each task by Slurm, and for the node by gangrun, whose ranks share them."""
    ranks, cpus = ranks_per_node(script), given.get("cpus-per-task")
    words = (f"--nproc-per-node={ranks}",) if ranks > 1 else ()
    return (*words, f"--cpus-per-task={_whole(script, cpus) * ranks}") if cpus is not None else words
