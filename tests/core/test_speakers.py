"""Who spoke, and what befell them: the same words, placed by the library that says them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangrun.core.evidence import Evidence
from gangrun.core.model import Cause, Cure
from gangrun.core.recovery import error_rules, speakers
from gangrun.core.recovery.error_rules import NO_RULE, marked
from gangrun.core.recovery.failure_texts import RULES
from gangrun.core.recovery.speakers import PLACES, Event, Speaker, place, place_line, speaker_of
from tests.core.test_blame import error, fell, judge, placed

PACKAGES = "/opt/env/lib/python3.11/site-packages"
SCRIPT, SOCKET = "/opt/job/train.py", "/usr/lib/python3.11/socket.py"
PROCESSES = "/usr/lib/python3.11/subprocess.py"


def trace(*paths: str) -> str:
    return "".join(f'  File "{path}", line 7, in call\n' for path in paths)


def of(kind: str, message: str, *paths: str) -> str:
    """The row that an exception is placed in, raised in these files."""
    report = replace(error(message, kind=kind), traceback=trace(SCRIPT, *paths))
    return marked(fell(report=report)).mark


@pytest.mark.parametrize(
    ("name", "kind", "message", "paths"),
    [
        # one text, four speakers
        ("peer-lost", "RuntimeError", "it was closed", (f"{PACKAGES}/torch/distributed/distributed_c10d.py",)),
        ("service", "RuntimeError", "it was closed", (f"{PACKAGES}/gcsfs/core.py", SOCKET)),
        (NO_RULE, "RuntimeError", "it was closed", (f"{PACKAGES}/torch/nn/functional.py",)),
        (NO_RULE, "RuntimeError", "it was closed", ()),
        # the address
        ("peer-lost", "UnavailableError", "{{node CollectiveReduce}} Connection reset by peer", ()),
        ("service", "UnavailableError", "Connection reset by peer", ()),
        ("service", "RuntimeError", "s3://bucket/index.json took too long", ()),
        ("refused", "RuntimeError", "s3://bucket/index.json not found! Check the bucket", ()),
        # an error of the system, or of a class of its own, in words that nobody knows
        ("service-other", "OSError", "[Errno 0] new", (f"{PACKAGES}/urllib3/connectionpool.py",)),
        ("service-other", "google.api_core.exceptions.Unknown", "None", ()),
        (NO_RULE, "google.x.KeyError", "new", (f"{PACKAGES}/google/auth/x.py",)),
        ("storage-other", "zarr.errors.NewError", "new", ()),
        (NO_RULE, "pyarrow.lib.ArrowInvalid", "new", ()),
        ("fabric-other", "torch.distributed.DistStoreError", "new", ()),
        ("fabric-other", "RuntimeError", "[x/gloo/y.cc:1] new", (f"{PACKAGES}/torch/distributed/c.py",)),
        (NO_RULE, "RuntimeError", "new", (f"{PACKAGES}/torch/distributed/c.py",)),
        ("setup-other", "RuntimeError", "new", (f"{PACKAGES}/triton/runtime/build.py",)),
        (NO_RULE, "NotImplementedError", "new", (f"{PACKAGES}/triton/runtime/build.py",)),
        ("setup-other", "pkg_resources.DistributionNotFound", "new", ()),
        ("setup-other", "FileNotFoundError", "[Errno 2] No such file or directory: 'new'", (PROCESSES,)),
        (NO_RULE, "FileNotFoundError", "[Errno 2] No such file or directory: 'new'", (SOCKET,)),
        (NO_RULE, "FileNotFoundError", "[Errno 2] No such file or directory: 'new'", ()),
        ("config", "hydra.errors.NewException", "new", ()),
        ("config", "pydantic_core._pydantic_core.ValidationError", "1 validation error for Config", ()),
        # what a library raises for a wrong use of it is none of a service
        (NO_RULE, "RuntimeError", "an error", (f"{PACKAGES}/gcsfs/core.py",)),
        (NO_RULE, "AssertionError", "an error of hdfs://x", ()),
        ("service", "AssertionError", "Checksum failure", (f"{PACKAGES}/gcsfs/core.py",)),
        # a compiled module, a class, and Python's own frames
        ("damaged-file", "RuntimeError", "bad md5", ("h5py/h5f.pyx",)),
        ("service-other", "wandb.errors.Error", "an error", ()),
        (NO_RULE, "RuntimeError", "bad md5", (SOCKET,)),
        ("storage-other", "OSError", "Unable to open file (errno = 2)", ("h5py/h5f.pyx",)),
        ("storage-other", "RuntimeError", "x.pt cannot be created: not found", (f"{PACKAGES}/torch/serialization.py",)),
        (NO_RULE, "ValueError", "Unable to open file (errno = 2)", ("h5py/h5f.pyx",)),
        (
            "shared-memory",
            "OSError",
            "[Errno 28] No space left on device",
            ("/usr/lib/python3/multiprocessing/heap.py",),
        ),
        ("storage-full", "OSError", "[Errno 28] No space left on device", ("/usr/lib/python3/shutil.py",)),
        ("library", "ImportError", "cannot import name 'a' from 'b'", (f"{PACKAGES}/c/d.py",)),
        ("import", "ImportError", "cannot import name 'a' from 'b'", ()),
    ],
)
def test_an_unknown_text_is_placed_by_who_raised_it(name: str, kind: str, message: str, paths: tuple[str, ...]) -> None:
    assert of(kind, message, *paths) == name


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("fabric", "psm2 can't open hfi unit: -1 (err=23)"),
        ("fabric", "pmi2_init failed to initialize. return code: 1"),
        ("peer-lost", "orte has lost communication with a remote daemon."),
        ("fabric-other", "fatal error in pmpi_waitall: other mpi error, error stack:"),
        ("", "by default, for open mpi 4.0 and later, infiniband ports on a device are not used by default."),
        ("", "ucx warn: the endpoint timed out"),
        ("", " 0  /opt/hpcx/ucx/lib/libucs.so.0(ucs_handle_error+0x2cc) [0x4000f1ce278c]"),
        ("", "gs://bucket/x: connection reset by peer"),
        ("", "pmix: hello"),
    ],
)
def test_of_lines_only_those_of_the_network_end_a_process(name: str, line: str) -> None:
    assert place_line(line) == name


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("config", "[rank3]: omegaconf.errors.NewError: new"),
        ("service-other", "botocore.exceptions.NewError: new"),
        (NO_RULE, "KeyError: new"),
        (NO_RULE, "train: hydra.errors is not there"),
    ],
)
def test_a_line_that_is_headed_as_an_exception_is_placed_as_one(name: str, line: str) -> None:
    assert marked(replace(fell(), tail=("it begins", line))).mark == name


def test_every_place_is_a_row() -> None:
    places = {*PLACES.values(), *speakers.ANY_EVENT.values(), *speakers.OWN_ERRORS.values()}
    assert places <= {rule.name for rule in RULES}
    assert place("an error without a speaker") == "" and speaker_of("x") is None
    assert place("s3://x") == "" and speaker_of("s3://x") is Speaker.SERVICE, "nothing befell it"
    assert place("mpi_init: connection closed") == PLACES[Speaker.FABRIC, Event.LOST]
    assert place("h5py.error: connection closed") == "storage-other", "files are not lost so"
    assert speakers.event_of("hello") is None


def test_lines_that_end_a_process_count_if_all_nodes_show_them_not_last() -> None:
    lines = ("[n1:1] pmi2_init failed to initialize", "see the manual of your site")
    exits = tuple(replace(fell(rank, f"n{rank}"), tail=lines, written_at=1.0) for rank in (1, 2, 3))
    compared = error_rules.compared(exits, {})
    assert all(entry.startswith("fabric/") for died in compared for entry in died.shown) and compared[0].shown


THREE = placed("n1", "n2", "n3")


@pytest.mark.parametrize(
    ("message", "kind", "whole", "step", "cause"),
    [
        ("No module named 'x'", "ModuleNotFoundError", True, -1, Cause.ENVIRONMENT),
        ("No module named 'x'", "ModuleNotFoundError", False, -1, Cause.USAGE),
        ("[Errno 28] No space left on device", "OSError", True, 9, Cause.LOCAL_DISK),
        ("[Errno 28] No space left on device", "OSError", False, 9, Cause.STORAGE),
        ("[Errno 122] Disk quota exceeded", "OSError", True, 9, Cause.STORAGE),
        ("401 Client Error: Unauthorized for url: https://hub/x", "HTTPError", True, -1, Cause.ENVIRONMENT),
        ("401 Client Error: Unauthorized for url: https://hub/x", "HTTPError", False, -1, Cause.USAGE),
        ("401 Client Error: Unauthorized for url: https://hub/x", "HTTPError", False, 9, Cause.SERVICE),
    ],
)
def test_what_a_whole_node_shows_alone_is_its_own(
    message: str, kind: str, whole: bool, step: int, cause: Cause
) -> None:
    ranks = (0, 1) if whole else (0,)
    exits = tuple(fell(rank, "n1", report=error(message, kind=kind), at=10.0 + rank) for rank in ranks)
    verdict = judge(Evidence(exits=exits), placement=THREE, nodes_count=3, step=step)
    assert (verdict.cause, verdict.cure in {Cure.MOVE, Cure.RESTART}) == (cause, True)
