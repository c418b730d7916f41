"""Who spoke, and what befell them: places a text whose words no row of ``failure_texts`` knows.

The same words, such as "connection reset" or "input/output error", mean a lost peer, a service outside the gang or
storage. What tells them apart is the library that says them. Its name stands in the text itself (``MPIDI_OFI_...``), in
the address (``/job:worker/task:1``, ``s3://``), in the module of the exception's class, or in the innermost frame of
the traceback that is not Python's own: there a library raised the error, or the script did. What befell it is one of
few events. ``PLACES`` has a row for each pair that says enough.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache

LINES_KEPT_COUNT = 1024  # ranks that fall together write the same few lines


class Speaker(Enum):
    """Which kind of library wrote a text."""

    FABRIC = "what moves bytes between nodes: MPI, UCX, libfabric, verbs, PMIx"
    GANG = "what connects ranks: torch.distributed, Horovod, the cluster runtimes of TensorFlow and JAX"
    SERVICE = "a client of a service outside the gang: object stores, hubs, trackers, databases"
    FILES = "what reads and writes files: HDF5, Arrow, Zarr, safetensors"
    SETUP = "what finds, builds and loads packages and libraries"
    CONFIG = "what reads arguments and configurations: argparse, click, Hydra, OmegaConf, absl, pydantic"


class Event(Enum):
    """What befell the speaker."""

    DAMAGED = "what came is not what was stored"
    REFUSED = "the other side answered, and does not let it"
    LOST = "the other side does not answer"
    UNOPENED = "its own side could not be set up"
    OTHER = "an error that tells no more"


_FABRIC = re.compile(
    r"(?<![a-z])(p?mpi_[a-z]\w*|mpi[drux]\w*_\w+|open ?mpi\b|o?mpi\b|mpich\b|ofi\b|mtl_ofi|libfabric|fi_[a-z]+\b"
    r"|cxip?_?\w*\b|psm[23]?\b|hf[ip]\d?_\w+|ucx\b|uc[ptc]_\w+|pmi[x2]?(_\w+)?\b|pmix\w*|ort[ed]\w*\b|prr?ted?\b|hcoll\b|ud_iface"
    r"|dc_verbs|rc_mlx5|ib_mlx5\w*)"
)
_GANG = re.compile(
    r"/job:\w+/(replica|task):\d|collective(reduce|gather|bcast|allto|_?ops| ?executor)|coordination ?service"
    r"|jax distributed service|\bei00\d\d\b|horovod(internalerror|shutdown| has been shut ?down)"
    r"|remote target unknown_target"
)
_SERVICE = re.compile(
    r"(?<![\w/])(s3a?|gs|gcs|hdfs|viewfs|abfss?|wasbs?|az|adl|oss|obs|cos|hf|swift|mongodb|redis|etcd|kafka)://"
    r"|(get|put|post|head|from|to|url|at|reach|request|download|upload|endpoint)\W{1,3}https?://"
    r"|\b(hdfs|namenodes?|object ?store|tracking server)\b"
)
# In frames, and in the modules of exceptions' classes.
_SERVICE_MODULES = re.compile(
    r"(boto3?|botocore|aiobotocore|s3fs|s3transfer|s3torchconnector\w*|awscrt|gcsfs|google[./](api_core|auth|cloud"
    r"|resumable_media|oauth2)|googleapiclient|adlfs|azure\w*|ossfs|oss2|obs|minio|qcloud_cos|huggingface_hub"
    r"|hf_transfer|hf_xet|modelscope|datasets[./](download|utils[./]file_utils)|requests|urllib3|httpx|httpcore|httplib2"
    r"|aiohttp|grpc|wandb|mlflow|comet_ml|neptune\w*|clearml|swanlab|aim|trackio|redis|pymongo|psycopg\w*|sqlalchemy"
    r"|mysql|kafka|confluent_kafka|etcd3?|kazoo|consul|streaming[./]|litdata[./]streaming|fsspec[./](asyn|implementations"
    r"[./](http|sftp|github|arrow|webhdfs|smb))|cloudpathlib|smart_open|kubernetes|paramiko|websockets?|petastorm[./]hdfs"
    r"|aistore|alluxio\w*|tensorstore|hvac|ldap3|opensearch\w*|elasticsearch\w*|pika|nats|zenoh|openai|anthropic)\b"
)
_GANG_MODULES = re.compile(
    r"(torch[./]distributed(?![./](checkpoint|fsdp|tensor|_tensor|_shard|algorithms|optim|pipelin))|horovod"
    r"|tensorflow[./]python[./]distribute|jax[./]_src[./](distributed|clusters)|mpi4py|ucp)\b"
)
_FILES_MODULES = re.compile(
    r"(h5py|zarr|safetensors|pyarrow|fastparquet|lmdb|netcdf4|tables|soundfile|numpy[./]lib|webdataset|tifffile|nibabel"
    r"|torch[./](serialization|distributed[./]checkpoint)|orbax)\b"
)
_SETUP_MODULES = re.compile(
    r"(torch[./]utils[./]cpp_extension|torch[./]_inductor[./](cpp_builder|codecache|cpu_vec_isa)"
    r"|pkg_resources|setuptools|triton[./](runtime[./](build|cache)|backends)|importlib[./]metadata|packaging|distutils|locale)\b"
)
_CONFIG_MODULES = re.compile(  # of a class: what these raise, they refuse
    r"(argparse|click|typer|hydra|omegaconf|jsonargparse|absl\.flags|configparser|tyro|simple_parsing|fire|pydantic\w*"
    r"|yaml|ruamel|toml\w*|draccus|docopt|getopt|optparse|(pytorch_)?lightning[\w.]*misconfiguration)(\b|exception)"
)
# No wrong use, for which libraries raise errors of Python's classes.
_GANG_ERRORS = re.compile(r"torch\.distributed\.dist\w*error\b|runtimeerror: \[[^\]\n]*gloo/")
_SYSTEMS = re.compile(r"(oserror|ioerror|socket\.\w+|ssl\.\w+|http\.client\.\w+|connection\w*error)\b")
_NO_PROGRAM = re.compile(r"(filenotfound|permission|os)error: \[errno")
_MEMORY_FRAMES = re.compile(
    r"multiprocessing/(heap|shared_memory|synchronize|sharedctypes|managers|reductions|resource_tracker)\.py"
    r"|torch/(storage|multiprocessing/\w+)\.py|plasma|sharedarray|streaming/base/shared"
)
_FRAME = re.compile(r'^[\s>|]*file "([^"\n]+)", line \d+', re.MULTILINE)
_PACKAGE = re.compile(r"(?:site|dist)-packages/(.+)$")
_OF_PYTHON = re.compile(r"/python\d[\d.]*/(?!(site|dist)-packages)|^<(frozen|string)")

_EVENTS: dict[Event, re.Pattern[str]] = {  # the first that matches counts
    Event.DAMAGED: re.compile(r"checksum|\bcrc\b|corrupt|truncated|unexpected end|magic|md5|sha256|for message body"),
    Event.REFUSED: re.compile(
        r"\b(400|401|403|404|409|410|422)\b|unauthori[sz]ed|forbidden|permission|denied|not authori[sz]ed|authenticat"
        r"|credential|(token|ticket|session|key)\w* (has |is )?expired|no ?such|not ?found|not exist|gated"
        r"|invalid (token|api|access|signature|argument|parameter)|check (the|your) "
    ),
    Event.LOST: re.compile(
        r"connection|connect\b|timed? ?out|timeout|took too long|deadline|unavailable|unreachable|\blost\b|\bdied\b"
        r"|broken pipe|reset by peer|closed|disconnect|no route"
        r"|incarnation|heartbeat|cancell?ed|undeliverable|subchannel"
        r"|end of file|did not (send|respond|answer|receive)|not received|\bretry count|os error|shut ?down|\beof\b"
        r"|transport init|create dest|remote error"
    ),
    Event.UNOPENED: re.compile(
        r"(fail\w*|unable|cannot|can't|could not|\bno|\bnot)\b[^\n]{0,60}\b(open\w*|init\w*|creat\w*|load\w*"
        r"|start\w*|find|found|available|support\w*|built|enabled|installed)\b"
        r"|(?<![a-z])(open\w*|init\w*|creat\w*|load\w*|fi_(domain|endpoint|fabric|getinfo))\b[^\n]{0,60}\bfail\w*"
        r"|(context|not implemented|psm\d?_\w+)[^\n]{0,60}(fail|busy)|fi_\w+\)|not.found in file"
    ),
    Event.OTHER: re.compile(r"error|fail|fatal|abort|critical|exit \d"),
}
PLACES: dict[tuple[Speaker, Event], str] = {
    (Speaker.FABRIC, Event.LOST): "peer-lost",
    (Speaker.FABRIC, Event.REFUSED): "fabric",
    (Speaker.FABRIC, Event.UNOPENED): "fabric",
    (Speaker.FABRIC, Event.OTHER): "fabric-other",
    (Speaker.FABRIC, Event.DAMAGED): "fabric-other",
    (Speaker.GANG, Event.LOST): "peer-lost",
    (Speaker.SERVICE, Event.DAMAGED): "service",
    (Speaker.SERVICE, Event.REFUSED): "refused",
    (Speaker.SERVICE, Event.LOST): "service",
    (Speaker.SERVICE, Event.UNOPENED): "service-other",
    (Speaker.SERVICE, Event.OTHER): "service-other",
    (Speaker.FILES, Event.DAMAGED): "damaged-file",
    (Speaker.FILES, Event.REFUSED): "storage-other",
    (Speaker.FILES, Event.UNOPENED): "storage-other",
}
ANY_EVENT = {Speaker.SETUP: "setup-other", Speaker.CONFIG: "config"}  # whatever befell them
OWN_ERRORS = {Speaker.SERVICE: "service-other", Speaker.FILES: "storage-other", Speaker.GANG: "fabric-other"}
# A library raises these for a wrong use of it.
_WRONG_USE = re.compile(r"[\w.]*((assertion|validation|notimplemented|type|value|key|index|attribute)error|invalid)\b")
_OF_SYSTEM = re.compile(r"(os|io|runtime)error: [^\n]*\b(open|create|write)")
# What is written and lived through, and lines of a stack, which name whoever was called.
_LIVED = re.compile(
    r"\bwarn(ing)?\b|\bignored\b|\binfo\b|\bdebug\b|fall(ing)? ?back|caught signal|\[0x[0-9a-f]+\]\s*$"
    r"|\+0x[0-9a-f]+\)|^\s*#?\d+:?\s+(/|0x)"
)

# Forms in which programs and libraries that are not Python's write: ``file.cc:12``, ``Space::function``, ``program: ``.
_NATIVE = re.compile(
    r"\.(cc|cpp|cxx|cuh?|hip|hpp|h|c|rs|go)\b[:(]\d+|\w::\w|^\W*fatal\b|\b(error|fatal)\s+\w+:\w"
    r"|^(\[[^\]]*\] *)*(?!error|warn|info|usage|note)[\w./@-]+(?<!\.py)(\[\d+\])?: "
)
_PYTHONS = re.compile(
    r"traceback \(most recent|^\W*file \"[^\"]+\", line \d+"
    r"|(?<![:\w.])(?!nccl)([a-z_]\w*\.)*\w+(error|exception|exit|interrupt)(: |:?$)"
    r"|^\W*(\[\S+\]:?\s*)?[a-z_]\w*(\.\w+)+: "
)
_HEAD = re.compile(r"^(?:\[[^\]]*\]:?\s*)*((?:[a-z_]\w*\.)+\w+|\w+(?:error|exception|timeout)): ")
_NCCLS = re.compile(r"\b[nrh]ccl warn\b|\.(cc|h|cu):\d+ warn\b")


def is_pythons(line: str) -> bool:
    """Is it of a traceback, or the head of an exception of Python? Of lower case."""
    return _PYTHONS.search(line) is not None


def is_native(line: str) -> bool:
    """Did a program or library that is not Python's write it, by its form, and not to tell how it goes?"""
    return _NATIVE.search(line) is not None and _LIVED.search(line) is None


def head_of(line: str) -> str:
    """``kind: message`` of a line that is headed as an exception of Python is, without the rank before it; else ""."""
    head = _HEAD.search(line)
    return line[head.start(1) :] if head is not None else ""


def is_of_nccl(line: str) -> bool:
    """Is it a warning of NCCL or of a library like it?"""
    return _NCCLS.search(line) is not None


def speaker_of(text: str, traceback: str = "") -> Speaker | None:
    """Who wrote it, by its words, by the module of its class (``module.Class: ...``), else by the frames; None: nobody
    that is known, such as the script. All of lower case.
    """
    named = _named(text)
    return named if named is not None else _of_module(_innermost(traceback))


def _named(text: str) -> Speaker | None:
    if _FABRIC.search(text):
        return Speaker.FABRIC
    if _GANG.search(text):
        return Speaker.GANG
    of_class = _of_module(text)
    return Speaker.SERVICE if of_class is None and _SERVICE.search(text) else of_class


def _of_module(path: str) -> Speaker | None:
    if _SERVICE_MODULES.match(path):
        return Speaker.SERVICE
    if _GANG_MODULES.match(path):
        return Speaker.GANG
    if _SETUP_MODULES.match(path):
        return Speaker.SETUP
    return Speaker.FILES if _FILES_MODULES.match(path) else None


def _innermost(traceback: str) -> str:
    """The package and module of the innermost frame that is not Python's own; "" if that is the script's."""
    for path in reversed(_FRAME.findall(traceback)):
        package = _PACKAGE.search(path)
        if package is not None:
            return package[1]
        if path.endswith((".pyx", ".pxi")):
            return str(path)  # of a compiled module, such as ``h5py/h5f.pyx``
        if not _OF_PYTHON.search(path):
            return ""
    return ""


def is_of_package(traceback: str) -> bool:
    """Did a package that is installed raise it, and not the script?"""
    return bool(_innermost(traceback))


def event_of(text: str) -> Event | None:
    """What befell the speaker; None: nothing that is an error."""
    return next((event for event, pattern in _EVENTS.items() if pattern.search(text)), None)


def place(text: str, traceback: str = "") -> str:
    """The name of the row for a text that no row's pattern matches; "" if it says too little."""
    if _CONFIG_MODULES.match(text):
        return ANY_EVENT[Speaker.CONFIG]
    if _NO_PROGRAM.match(text) and any(path.endswith("/subprocess.py") for path in _FRAME.findall(traceback)[-1:]):
        return ANY_EVENT[Speaker.SETUP]
    speaker, event = speaker_of(text, traceback), event_of(text)
    if speaker is None:
        return ""
    if speaker in ANY_EVENT:
        return "" if _WRONG_USE.match(text) else ANY_EVENT[speaker]
    is_file = speaker is Speaker.FILES and _OF_SYSTEM.match(text)
    is_certain = event in {Event.DAMAGED, Event.LOST} or is_file
    if event is not None and (is_certain or not (_WRONG_USE.match(text) or _named(text) is None)):
        found = PLACES.get((speaker, event), "")
        if found:
            return found
    return OWN_ERRORS.get(speaker, "") if _is_own_error(speaker, text) else ""


def _is_own_error(speaker: Speaker, text: str) -> bool:
    """Is it an error of the system that this library met, or one of its own classes? Any library raises errors of
    Python's classes for a wrong use of it.
    """
    if speaker is Speaker.GANG:
        return _GANG_ERRORS.match(text) is not None
    return _SYSTEMS.match(text) is not None or (_of_module(text) is speaker and _WRONG_USE.match(text) is None)


def is_of_memory(traceback: str) -> bool:
    """Did what writes to the node's shared memory raise it?"""
    return any(_MEMORY_FRAMES.search(path) for path in _FRAME.findall(traceback)[-3:])


@lru_cache(maxsize=LINES_KEPT_COUNT)
def place_line(line: str) -> str:
    """The same of a line of stderr, where libraries also write what they live through: only what connects nodes and
    ranks ends a process with lines alone.
    """
    speaker, event = _named(line), event_of(line)
    if speaker not in {Speaker.FABRIC, Speaker.GANG} or event is None or _LIVED.search(line):
        return ""
    return PLACES.get((speaker, event), "")
