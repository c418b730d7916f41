"""The manifest of a checkpoint: ``gangrun.json`` beside torch's own files.

Written last, it names every file with its size and the CRC32 of each chunk, and binds all of them to one step of one
save by a nonce. Its own digest closes it, so that a flipped bit in the manifest is damage and never another checkpoint.

    {"body": {"schema": 1, "step": 200, "nonce": "…", "files": [{"path": "__0_0.distcp", "size": 9, "crcs": "8 hex…"}]},
     "digest": "blake2b of the body's bytes as they stand in the file"}
"""

from __future__ import annotations

import re
from hashlib import blake2b

import msgspec

SCHEMA = 1
MANIFEST_NAME = "gangrun.json"
MANIFEST_MAX_BYTES = 256 * 1024 * 1024
CHUNK_BYTES = 16 * 1024 * 1024
CHUNK_MIN_BYTES = 4096
STEP_MAX = 10**18
AGREED, DIFFER = "agreed", "differ"
SAVE_ID_PREFIX = "gangrun-"  # torch's .metadata bears the nonce too, so that a manifest that was lost is missed

_CRC_HEX_COUNT = 8
_NONCE = re.compile(r"[0-9a-f]{16,64}")
_CRCS = re.compile(r"([0-9a-f]{8})*")
_PATH_MAX_BYTES = 1024


class ManifestError(ValueError):
    """Not a manifest that can be relied on; the message says why."""


class FileRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file: its path inside the checkpoint, its bytes, and the CRC32 of each chunk in hex, one after the other.

    ``linked_from``: the file of an older checkpoint ("step-10/__0_1.distcp") with which it shares its bytes on disk.
    That one may be gone: a hard link needs no other.
    """

    path: str
    size: int
    crcs: str
    linked_from: str = ""

    def crc_of(self, chunk: int) -> int:
        """The CRC32 that chunk number ``chunk`` must have."""
        return int(self.crcs[chunk * _CRC_HEX_COUNT : (chunk + 1) * _CRC_HEX_COUNT], 16)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One committed checkpoint. ``run`` is "" and ``attempt`` 0 where no launcher was in charge."""

    schema: int = SCHEMA
    step: int
    nonce: str
    run: str = ""
    term: int = 0
    attempt: int = 0
    world_size: int = 1
    made_by: str = ""
    written_wall: float = 0.0  # seconds since 1970, for people
    replicas: str = ""  # AGREED or DIFFER: ranks that held copies compared them at this save; "": nobody did
    is_sharable: bool = False  # ranks that load it can send each other what their nodes lack of it
    chunk_bytes: int = CHUNK_BYTES
    files: tuple[FileRow, ...] = ()

    @property
    def data_bytes(self) -> int:
        """Bytes of all files together, the manifest excepted."""
        return sum(row.size for row in self.files)


def crcs_text(crcs: list[int]) -> str:
    """CRC32 values as they stand in a row."""
    return "".join(f"{crc:08x}" for crc in crcs)


def encode(manifest: Manifest) -> bytes:
    """The file's content."""
    body = msgspec.json.encode(manifest)
    return b'{"body":' + body + b',"digest":"' + _digest(body).encode() + b'"}\n'


def decode(data: bytes) -> Manifest:
    """Read and check a manifest; ``ManifestError`` and nothing else where it cannot be relied on."""
    try:
        outer = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        body, digest = bytes(outer["body"]), msgspec.json.decode(outer["digest"], type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, RecursionError):
        raise ManifestError(f"{MANIFEST_NAME} is torn or is no manifest") from None
    if digest != _digest(body):
        raise ManifestError(f"{MANIFEST_NAME} is damaged: its own digest is wrong")
    try:
        found = msgspec.json.decode(body, type=dict[str, msgspec.Raw]).get("schema", msgspec.Raw(b"0"))
        schema = msgspec.json.decode(found, type=int)
        if schema > SCHEMA:
            raise ManifestError(
                f"{MANIFEST_NAME} has schema {schema}, newer than this gangrun's {SCHEMA}: upgrade gangrun"
            )
        manifest = msgspec.json.decode(body, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(f"{MANIFEST_NAME} cannot be understood: {error}") from None
    _check(manifest)
    return manifest


def _digest(body: bytes) -> str:
    return blake2b(body, digest_size=16).hexdigest()


def _check(manifest: Manifest) -> None:
    if not 0 <= manifest.step <= STEP_MAX or not _NONCE.fullmatch(manifest.nonce):
        raise ManifestError(f"{MANIFEST_NAME} names no step or no save")
    if manifest.chunk_bytes < CHUNK_MIN_BYTES or not manifest.files:
        raise ManifestError(f"{MANIFEST_NAME} lists no files, or chunks of {manifest.chunk_bytes} bytes")
    if len({row.path for row in manifest.files}) != len(manifest.files):
        raise ManifestError(f"{MANIFEST_NAME} lists a file twice")
    for row in manifest.files:
        if not is_inside(row.path) or row.path == MANIFEST_NAME:
            raise ManifestError(f"{MANIFEST_NAME} points outside its directory: {row.path[:200]!a}")
        if row.linked_from and not is_inside(row.linked_from):
            raise ManifestError(f"{MANIFEST_NAME} says that a file came from {row.linked_from[:200]!a}")
        chunks = -(-row.size // manifest.chunk_bytes)
        if row.size < 0 or len(row.crcs) != chunks * _CRC_HEX_COUNT or not _CRCS.fullmatch(row.crcs):
            raise ManifestError(f"{MANIFEST_NAME} has no checksum for every chunk of {row.path[:200]!a}")


def is_inside(path: str) -> bool:
    """Whether a path is relative, of plain names, and cannot leave the directory it is told of."""
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        return False
    try:
        return len(path.encode("utf-8")) <= _PATH_MAX_BYTES
    except UnicodeEncodeError:
        return False
