"""Secrets among the words of a command: which they are, and how they may be shown.

A script's arguments are kept with the run, since another job must start it again with the very same ones. So all that
can be done for a secret among them is never to show it, and to tell whoever typed it of ``--env NAME``, which is kept
nowhere. Names are judged by their words, not by their letters: a tokenizer is no token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

HIDDEN = "***"
_VARIABLE_NAME = re.compile(
    r"^GANGRUN_NOTIFY$|KEY|TOKEN|SECRET|PASSW|PASSPHRASE|PASSCODE|CREDENTIAL|(^|_)(PASS|PWD|PAT)$", re.IGNORECASE
)
_IN_ADDRESS = re.compile(r"(://[^/?#\s:@]*:)[^/?#\s@]+@")  # a password within an address
_ASSIGNED = re.compile(r"(-{0,2}\+{0,2}[A-Za-z_][\w.\-]*)=(.*)", re.DOTALL)
_PLAIN = re.compile(r"[-+]?[\d.,e]*|true|false|none|null|yes|no|[<\[{|].*|(\.{0,2}|~)/.*", re.IGNORECASE | re.DOTALL)
_ALWAYS = {"password", "passwd", "passphrase", "passcode", "secret", "credential", "credentials", "apikey", "pwd"}
_KEYS_TO = {"access", "account", "api", "auth", "encryption", "private", "secret", "service", "signing", "ssh"}
# what a model reads is a token as well
_TEXT = {"pad", "eos", "bos", "unk", "mask", "sep", "cls", "image", "audio", "video", "special", "stop", "start", "end"}


def is_secret(name: str, value: str) -> bool:
    """May this variable's value not be written anywhere? It reaches the ranks by inheritance alone."""
    return bool(_VARIABLE_NAME.search(name) or _IN_ADDRESS.search(value))


def secret_names(words: Sequence[str]) -> tuple[str, ...]:
    """The arguments whose values look like secrets, as they were typed."""
    return tuple(dict.fromkeys(name for _, name, _ in _found(words)))


def redacted(words: Sequence[str]) -> tuple[str, ...]:
    """The words as they may be shown."""
    shown = list(words)
    for k, _, harmless in _found(words):
        shown[k] = harmless
    return tuple(shown)


def _found(words: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """(place of the word, name of what it holds, how it may be shown)."""
    for k, word in enumerate(words):
        assigned = _ASSIGNED.fullmatch(word)
        before = words[k - 1] if k else ""
        if assigned and _names_one(assigned[1], assigned[2]):
            yield k, assigned[1], f"{assigned[1]}={HIDDEN}"
        elif before.startswith("-") and "=" not in before and not word.startswith("-") and _names_one(before, word):
            yield k, before, HIDDEN
        elif _IN_ADDRESS.search(word):
            yield k, assigned[1] if assigned else "an address", _IN_ADDRESS.sub(rf"\1{HIDDEN}@", word)


def _names_one(name: str, value: str) -> bool:
    """Is ``name`` what people call a secret, and ``value`` not what nobody would keep secret?"""
    if _PLAIN.fullmatch(value):
        return False
    *before, last = re.split(r"[\W_]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name.lstrip("-+"))) or [""]
    last, lead = last.lower(), {word.lower() for word in before}
    if last == "token":
        return not lead & _TEXT
    if last == "key":
        return not lead or bool(lead & _KEYS_TO) or name.isupper()
    return last in _ALWAYS
