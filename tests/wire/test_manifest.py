"""The manifest: what goes in comes out, and nothing else is taken for one."""

from __future__ import annotations

from hashlib import blake2b

import msgspec
import pytest

from gangrun.wire.manifest import CHUNK_BYTES, FileRow, Manifest, ManifestError, crcs_text, decode, encode, is_inside

NONCE = "0123456789abcdef"
WHOLE = Manifest(
    step=200, nonce=NONCE, run="r", attempt=3, world_size=2,
    files=(FileRow("__0_0.distcp", CHUNK_BYTES + 1, crcs_text([1, 0xFFFFFFFF])), FileRow("empty", 0, "")),
)  # fmt: skip


def changed(**fields: object) -> bytes:
    return encode(msgspec.structs.replace(WHOLE, **fields))


def closed(body: bytes) -> bytes:
    digest = blake2b(body, digest_size=16).hexdigest().encode()
    return b'{"body":' + body + b',"digest":"' + digest + b'"}'


def test_what_is_written_is_read() -> None:
    assert decode(encode(WHOLE)) == WHOLE
    assert (WHOLE.data_bytes, WHOLE.files[0].crc_of(0), WHOLE.files[0].crc_of(1)) == (CHUNK_BYTES + 1, 1, 0xFFFFFFFF)


def test_what_was_linked_is_told_from_what_was_written() -> None:
    linked = msgspec.structs.replace(WHOLE, files=(*WHOLE.files, FileRow("b", 3, "0" * 8, "step-10/__0_1.distcp")))
    assert decode(encode(linked)) == linked
    assert linked.data_bytes == CHUNK_BYTES + 4
    assert b"linked_from" not in encode(WHOLE), "older readers and writers meet the same bytes"


def test_every_flipped_bit_and_every_torn_end_is_seen() -> None:
    data = encode(WHOLE)
    for at in range(len(data) - 1):
        with pytest.raises(ManifestError, match=r"gangrun\.json"):
            decode(data[:at])
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        try:
            assert decode(bytes(flipped)) == WHOLE, f"byte {at}"  # a key's case or white space may not matter
        except ManifestError:
            continue


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (changed(step=-1), "names no step"),
        (changed(nonce="../x"), "names no step or no save"),
        (changed(files=()), "lists no files"),
        (changed(chunk_bytes=0), "chunks of 0 bytes"),
        (changed(files=(FileRow("a", 0, ""), FileRow("a", 0, ""))), "twice"),
        (changed(files=(FileRow("../a", 0, ""),)), "points outside"),
        (changed(files=(FileRow("gangrun.json", 0, ""),)), "points outside"),
        (changed(files=(FileRow("a", 5, ""),)), "no checksum for every chunk"),
        (changed(files=(FileRow("a", 5, "0000000G"),)), "no checksum for every chunk"),
        (changed(files=(FileRow("a", -5, ""),)), "no checksum for every chunk"),
        (changed(files=(FileRow("a", 0, "", "../../step-1/a"),)), "says that a file came from"),
        (changed(schema=99), "schema 99, newer"),
        (closed(b"[]"), "cannot be understood"),
        (closed(b'{"step":1}'), "cannot be understood"),
        (b"[" * 100_000, "torn or is no manifest"),
        (b'{"body":1}', "torn or is no manifest"),
    ],
)
def test_what_cannot_be_relied_on_is_refused_in_words(data: bytes, words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        decode(data)


def test_paths_stay_inside() -> None:
    assert is_inside("a/b.distcp") and is_inside("ü")
    for path in ("", "/etc/passwd", "a//b", "a/../b", "..", "./a", "a\0b", "\ud800", "x" * 2000):
        assert not is_inside(path), path
