"""What the texts of failures tell: every row of the table, how far a failure is spread, and what follows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gangrun.core.evidence import ErrorReport, Evidence, RankExit
from gangrun.core.model import Cause, Cure, Failure, Sighting
from gangrun.core.policy import Policy
from gangrun.core.recovery import error_rules
from gangrun.core.recovery.error_rules import rule_of
from gangrun.core.recovery.failure_texts import RULES
from gangrun.core.recovery.failure_words import WORDS
from tests.core.test_blame import error, fell, judge, placed

THREE = placed("n1", "n2", "n3")

TEXTS: dict[str, tuple[str, str]] = {
    "gpu-ecc": ("RuntimeError", "CUDA error: uncorrectable ECC error encountered"),
    "gpu-lost": ("NVMLError", "GPU is lost"),
    "gpu-fabric": ("RuntimeError", "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"),
    "driver-mismatch": ("RuntimeError", "Failed to initialize NVML: Driver/library version mismatch"),
    "gpu-missing": ("RuntimeError", "No CUDA GPUs are available"),
    "gpu-ordinal": ("RuntimeError", "CUDA error: invalid device ordinal"),
    "gpu-busy": ("RuntimeError", "CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
    "foreign-process": (
        "torch.OutOfMemoryError",
        "CUDA out of memory. Process 4711 has 70.50 GiB memory in use. This process has 512.00 MiB memory in use.",
    ),
    "rdma-missing": ("torch.distributed.DistBackendError", "NCCL error. NET/IB : No device found."),
    "rdma-memory": ("RuntimeError", "ibv_create_cq failed with error Cannot allocate memory"),
    "no-interface": ("DistBackendError", "Bootstrap : no socket interface found"),
    "device-assert": ("RuntimeError", "CUDA error: device-side assert triggered"),
    "no-kernel": ("RuntimeError", "CUDA error: no kernel image is available for execution on the device"),
    "cuda-fork": ("RuntimeError", "Cannot re-initialize CUDA in forked subprocess."),
    "cuda-not-built": ("AssertionError", "Torch not compiled with CUDA enabled"),
    "gpu-memory": ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB."),
    "nccl-usage": ("DistBackendError", "ncclInvalidUsage: Duplicate GPU detected : rank 0 and rank 1"),
    "usage": ("ArgumentError", "error: unrecognized arguments: --lr"),
    "syntax": ("SyntaxError", "invalid syntax (train.py, line 3)"),
    "import": ("ModuleNotFoundError", "No module named 'flash_attn'"),
    "library": ("OSError", "libcudart.so.12: cannot open shared object file: No such file or directory"),
    "gpu-launch": ("RuntimeError", "CUDA error: unspecified launch failure"),
    "gpu-fault": ("RuntimeError", "CUDA error: an illegal memory access was encountered"),
    "worker-memory": ("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Bus error."),
    "shared-memory": ("RuntimeError", "unable to write to file </torch_995_2167858072>"),
    "no-tmpdir": ("FileNotFoundError", "[Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp']"),
    "local-disk": ("OSError", "[Errno 28] No space left on device: '/tmp/cache/x'"),
    "mount-gone": ("OSError", "[Errno 107] Transport endpoint is not connected: '/mnt/data'"),
    "quota": ("OSError", "[Errno 122] Disk quota exceeded"),
    "read-only-here": ("OSError", "[Errno 30] Read-only file system: 'outputs'"),
    "storage-full": ("OSError", "[Errno 28] No space left on device"),
    "storage-error": ("OSError", "[Errno 5] Input/output error"),
    "save-failed": ("RuntimeError", "PytorchStreamWriter failed writing file data/12: file write failed"),
    "ib-completion": ("DistBackendError", "NET/IB : Got completion from peer n2<5> with status=12 vendor err 129"),
    "nccl-watchdog": ("DistBackendError", "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"),
    "peer-silent": ("XlaRuntimeError", "DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait_for_all_tasks"),
    "interrupt": ("KeyboardInterrupt", ""),
    "store-name": ("ValueError", "host not found: Name or service not known"),
    "nccl-remote": ("DistBackendError", "ncclRemoteError: A call failed possibly due to a network error"),
    "nccl-cuda": ("DistBackendError", "ncclUnhandledCudaError: Call to CUDA function failed."),
    "peer-lost": ("RuntimeError", "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:21734"),
    "port": ("OSError", "[Errno 98] Address already in use"),
    "service": ("HTTPError", "503 Server Error: Service Unavailable for url: https://hub/x"),
    "open-files": ("OSError", "[Errno 24] Too many open files"),
    "killed": ("SignalException", "Process 2920830 got signal: 1"),
    "host-memory": ("MemoryError", "Unable to allocate 3.1 GiB for an array"),
    "teardown": ("RuntimeError", "cannot schedule new futures at interpreter shutdown"),
    "memory-error": ("OSError", "[Errno 133] Memory page has hardware error"),
    "gpu-count": ("AssertionError", "Expected 8 GPUs but found 7"),
    "gpu-unknown": ("RuntimeError", "CUDA error: unknown error"),
    "rdma-route": ("RuntimeError", "Failed to modify QP to RTR: Connection timed out"),
    "rdma-local": ("DistBackendError", "NET/IB : Got completion from peer n2<5> with status=4 vendor err 81"),
    "cuda-usage": ("RuntimeError", "CUDA error: invalid configuration argument"),
    "toolchain": ("RuntimeError", "Failed to find C compiler. Please specify via CC environment variable."),
    "nccl-internal": ("DistBackendError", "ncclInternalError: Internal check failed."),
    "nccl-system": ("DistBackendError", "ncclSystemError: System call (e.g. socket) or external library failed"),
    "timeout": ("RuntimeError", "DataLoader timed out after 60 seconds"),
    "offline": ("OfflineModeIsEnabled", "Cannot reach https://huggingface.co/x: offline mode is enabled."),
    "certificate": ("SSLError", "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
    "container": ("RuntimeError", "OCI runtime create failed"),
    "gpu-other": ("RuntimeError", "CUDA error: something that is new"),
    "local-access": ("PermissionError", "[Errno 13] Permission denied: '/tmp/torch_extensions/fused'"),
    "storage-other": ("OSError", "[Errno 95] Operation not supported: '/data/x'"),
    "credentials": ("NoCredentialsError", "Unable to locate credentials"),
    "gpu-topology": ("DistBackendError", "ncclInternalError. Last error: Failed to find reverse path from remNode 0/2"),
    "fabric": ("DistBackendError", "ncclInvalidUsage. Last error: Failed to initialize any NET plugin"),
    "fabric-other": ("Exception", "OFI poll failed (ofi_events.c:1077:Input/output error - PTLTE_NOT_FOUND)"),
    "damaged-file": ("RuntimeError", "PytorchStreamReader failed: invalid header or archive is corrupted"),
    "setup-other": ("locale.Error", "unsupported locale setting"),
    "config": ("omegaconf.errors.ConfigAttributeError", "Key 'lr' is not in struct"),
    "device-access": ("PermissionError", "[Errno 1] Operation not permitted: '/dev/kfd'"),
    "access": ("PermissionError", "[Errno 13] Permission denied: '/home/alice/logs/usage.jsonl'"),
    "refused": ("HTTPError", "403 Client Error: Forbidden for url: https://hub/x"),
    "node-gone": ("ray.exceptions.ActorDiedError", "Worker exit detail: Owner's node has crashed."),
    "bus-error": ("RuntimeError", "a worker left with exit code -7"),
    "service-other": ("OSError", "exit 1 (read): aws s3 cp s3://bucket/file.tar -"),
}  # fmt: skip


def raised(kind: str, message: str, node: str = "n1", rank: int = 0) -> RankExit:
    return fell(rank, node, report=error(message, kind=kind, sig="same"), at=10.0 + rank)


@pytest.mark.parametrize("name", TEXTS)
def test_each_row_knows_its_text(name: str) -> None:
    found = rule_of(raised(*TEXTS[name]))
    assert found is not None and found.name == name


def test_what_is_compiled_beforehand_is_what_is_matched_with() -> None:
    error_rules._patterns.cache_clear()
    error_rules.prepare()
    assert error_rules._patterns.cache_info().currsize == 1


def test_every_row_has_a_text_here_and_a_name_of_its_own() -> None:
    elsewhere = {"cpu-instruction", "script-missing"}  # they stand in no exception
    assert set(TEXTS) | elsewhere == {rule.name for rule in RULES}
    assert len(error_rules.BY_NAME) == len(RULES)
    assert all(rule.says and rule.source for rule in RULES)
    assert set(WORDS) <= set(error_rules.BY_NAME)


def test_what_stands_in_stderr_counts_where_no_exception_tells_more() -> None:
    assert rule_of(fell(signal=4)) is error_rules.BY_NAME["cpu-instruction"]
    assert rule_of(fell(code=132)) is error_rules.BY_NAME["cpu-instruction"]
    assert (
        rule_of(replace(fell(code=2), tail=("python: can't open file 'x.py'",)))
        is (error_rules.BY_NAME["script-missing"])
    )
    watchdog = ("Watchdog caught collective operation timeout", "CUDA error: uncorrectable ECC error encountered")
    assert rule_of(replace(fell(signal=6), tail=watchdog)) is error_rules.BY_NAME["gpu-ecc"]
    assert rule_of(replace(fell(signal=6), tail=watchdog[:1])) is error_rules.BY_NAME["nccl-watchdog"]
    assert rule_of(fell(code=3)) is None


def test_a_warning_beside_an_exception_is_not_its_cause() -> None:
    old = ("UserWarning: The NVIDIA driver on your system is too old", "Read timed out.")
    assert rule_of(replace(fell(report=error(kind="ValueError")), tail=old)) is None, "Python raised it for a bug"
    assert rule_of(replace(fell(report=error(kind="RuntimeError")), tail=old[1:])) is None
    beside = rule_of(replace(fell(report=error(kind="RuntimeError")), tail=old))
    assert beside is error_rules.BY_NAME["driver-mismatch"]


def test_what_libraries_remark_at_every_start_is_no_evidence() -> None:
    remarks = (
        "INFO:root:Found 8 GPUs on this node",
        "libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.",
        "n1:77:77 [0] NCCL INFO NET/IB : No device found.",
        "INFO: NVLink SHARP disabled",
    )
    assert rule_of(replace(fell(report=error(kind="RuntimeError")), tail=remarks)) is None
    assert rule_of(replace(fell(signal=9), tail=remarks)) == rule_of(fell(signal=9))
    assert rule_of(replace(fell(), tail=("n1:77:77 [0] NCCL WARN NET/IB : No device found.",))) is not None


def test_the_causes_of_an_exception_count() -> None:
    report = ErrorReport(
        "CheckpointException", "rank 0 failed", "s", "", False, ("OSError: [Errno 116] Stale file handle",)
    )
    assert rule_of(fell(report=report)) is error_rules.BY_NAME["storage-error"]


# What libraries write: the row, or "-" for what it must not know, and the exception. ``\\n``: a new line.
SAID = (Path(__file__).parent / "judgement" / "said.txt").read_text().splitlines()


@pytest.mark.parametrize("line", SAID)
def test_what_libraries_write_is_known_by_the_right_row(line: str) -> None:
    name, _, text = line.replace("\\n", "\n").partition(" | ")
    kind, _, message = text.partition(": ")
    assert error_rules.marked(raised(kind.removesuffix(":"), message)).mark == name


WRITTEN: tuple[tuple[str, int, str], ...] = (
    ("script-missing", 127, "bash: line 1: accelerate: command not found"),
    ("script-missing", 126, ""),
    ("script-missing", 1, "Fatal Python error: init_fs_encoding: failed to get the Python codec of the filesystem"),
    ("killed", 137, ""),
    ("killed", 143, "Terminated"),
    ("killed", 1, "failed (exitcode: -9) local_rank: 2 (pid: 161617) of binary: /opt/env/bin/python3.11"),
    ("killed", 1, "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***"),
    ("killed", 1, "train.sh: line 3: 12345 Killed                  python train.py"),
    ("killed", 1, "Received SIGTERM, shutting down"),
    ("killed", 1, "srun: error: n1: task 0: Exited with exit code 143"),
    ("killed", 1, "srun: error: n1: tasks 0-3: Killed"),
    ("node-gone", 1, "salloc: error: Node failure on n1"),
    ("bus-error", 135, ""),
    ("bus-error", 1, "slurm_script: line 18: 3391194 Bus error               (core dumped) python3 train.py"),
    ("worker-memory", 1, "DataLoader worker (pid 7) is killed by signal: Bus error."),
    ("timeout", 1, "Timeout (0:30:00)!"),
    ("cpu-instruction", 132, ""),
    ("-", 139, ""),
    ("host-memory", 1, "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0."),
    ("gpu-missing", 1, "nvidia-container-cli: initialization error: nvml error: driver not loaded"),
    ("gpu-lost", 1, "NVRM: Xid (PCI:0000:3b:00): 79, pid=123, GPU has fallen off the bus."),
    ("-", 1, "NVRM: Xid (PCI:0000:79:00): 31, pid=123, name=python"),
    ("gpu-missing", 1, 'gathering device information "/dev/nvidia-uvm-tools": no such file or directory'),
    ("gpu-fault", 134, "Queue 0x7f aborting with error : HSA_STATUS_ERROR_EXCEPTION: a hardware exception"),
    ("gpu-memory", 1, "failed to allocate 5.95G (6390482944 bytes) from device: hipError_t(1002)"),
    ("nccl-watchdog", 1, "EE1002: Stream synchronize timeout. rtDeviceSynchronize execute failed"),
    ("container", 255, "  FATAL:   container creation failed: failed to resolve session directory /usr/local/mnt"),
    ("container", 255, "FATAL:   can't open /data/store.img for writing, currently in use by another process"),
    ("foreign-process", 1, "TPU device /dev/accel0 is in use by another process"),
    ("storage-full", 1, "touch: cannot touch '/home/a/log.txt': Read-only file system"),
    ("access", 255, "user@n1: Permission denied (publickey,password)."),
    ("access", 1, "The server socket has failed to bind to [::]:98 (errno: 13 - Permission denied)."),
    ("host-memory", 1, "RuntimeError: unable to mmap 2160 bytes from file </x>: Cannot allocate memory (12)"),
    ("storage-other", 1, "RuntimeError: unable to mmap 2160 bytes from file </x>: No such device (19)"),
    ("peer-lost", 134, "  what():  Transport endpoint is not connected"),
    ("storage-error", 1, "ls: cannot access '/mnt/data': Transport endpoint is not connected"),
    ("service", 1, "Operation 'AzureBlob List' failed with '408: '."),
    ("container", 1, "slurmstepd: error: pyxis: container start failed with error code: 1"),
    ("library", 127, "error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file"),
    ("-", 1, "NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "code", "line"), WRITTEN)
def test_what_stands_before_the_end_is_known_by_the_right_row(name: str, code: int, line: str) -> None:
    rule = rule_of(replace(fell(code=code), tail=(line,)))
    assert (rule.name if rule is not None else error_rules.NO_RULE) == name


def test_an_exception_that_only_says_that_another_process_failed_leaves_its_words_to_stderr() -> None:
    report = error("", kind="torch.distributed.elastic.multiprocessing.errors.ChildFailedError")
    inner = replace(fell(report=report), tail=("RuntimeError: DataLoader timed out after 60 seconds",))
    assert rule_of(inner) is error_rules.BY_NAME["timeout"]


def test_a_bug_in_code_that_handles_an_error_does_not_hide_the_error() -> None:
    ecc = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    report = replace(error(kind="AttributeError"), chain=(ecc,))
    assert rule_of(fell(report=report)) is error_rules.BY_NAME["gpu-ecc"]
    handled = replace(report, chain=("ModuleNotFoundError: No module named 'apex'", "TimeoutError: x"))
    assert rule_of(fell(report=handled)) is None, "to try another way is no cause"


def test_whoever_was_killed_did_not_end_of_what_it_had_raised_before() -> None:
    verdict = judge(Evidence(exits=(fell(signal=9, report=error()),)))
    assert (verdict.cause, verdict.signature) == (Cause.KILLED, "")
    aborted = judge(Evidence(exits=(fell(signal=6, report=error()),)))
    assert (aborted.cause, aborted.signature) == (Cause.RANK_ERROR, "sig-a")


def test_a_mark_stays_when_the_text_is_gone() -> None:
    marked = error_rules.marked(raised(*TEXTS["gpu-ecc"]))
    assert marked.mark == "gpu-ecc" and error_rules.marked(marked) is marked
    assert rule_of(replace(marked, error=None)) is error_rules.BY_NAME["gpu-ecc"]
    unknown = error_rules.marked(fell(code=3))
    assert unknown.mark == error_rules.NO_RULE and rule_of(unknown) is None


HELD_BY = {
    "process 8 holds 30 GiB of it": (
        "Process 7 has 3.00 GiB memory in use. Process 8 has 30.00 GiB memory in use. this process has 5.00 GiB memory"
        " in use"
    ),
    "process 5 holds 10.85 GiB of it": (
        "a total capacty of 11.91 GiB of which 300.06 MiB is free. Process 5 has 10.85 GiB memory in use. Process 6 has"
        " 501.00 MiB memory in use. Of the allocated memory 80.00 MiB is allocated by PyTorch"
    ),
    "another program holds 7.8 GiB of it": (
        "(GPU 0; 7.92 GiB total capacity; 69.17 MiB already allocated; 24.56 MiB free; 86.00 MiB reserved in total)"
    ),
}
HELD_BY_ITSELF = (
    "Process 8 has 30.00 GiB memory in use.",
    "Process 8 has 30.00 GiB memory in use. this process has 40.00 GiB memory in use",
    "total capacty of 14.75 GiB of which 235.06 MiB is free. Process 2 has 14.5 GiB. 14 GiB is allocated by PyTorch",
    "(GPU 0; 23.65 GiB total capacity; 20.00 GiB already allocated; 1.66 GiB free; 21.00 GiB reserved in total)",
)  # fmt: skip


@pytest.mark.parametrize(("who", "text"), [*HELD_BY.items(), *(("", text) for text in HELD_BY_ITSELF)])
def test_who_holds_the_memory(who: str, text: str) -> None:
    assert error_rules.foreign_process(text) == who


# ---- how far it is spread, and what follows --------------------------------------------------------------------------


def on(nodes: str, name: str, step: int = 120) -> tuple[Cause, Cure, tuple[str, ...], bool]:
    exits = tuple(raised(*TEXTS[name], node=f"n{digit}", rank=2 * index) for index, digit in enumerate(nodes))
    verdict = judge(Evidence(exits=exits), placement=THREE, nodes_count=3, step=step)
    return verdict.cause, verdict.cure, verdict.blamed, verdict.final


@pytest.mark.parametrize(
    ("name", "nodes", "step", "cause", "cure", "blamed", "final"),
    [
        ("gpu-ecc", "1", 120, Cause.HARDWARE, Cure.EXCLUDE, ("n1",), False),
        ("gpu-missing", "123", -1, Cause.ENVIRONMENT, Cure.END, (), True),
        ("gpu-missing", "123", 120, Cause.ENVIRONMENT, Cure.ONCE, (), False),
        ("usage", "1", -1, Cause.USAGE, Cure.END, (), True),
        ("import", "123", -1, Cause.USAGE, Cure.END, (), True),
        ("import", "1", -1, Cause.USAGE, Cure.MOVE, (), False),
        ("local-disk", "1", 120, Cause.LOCAL_DISK, Cure.EXCLUDE, ("n1",), False),
        ("local-disk", "12", 120, Cause.STORAGE, Cure.WAIT, (), False),
        ("service", "1", -1, Cause.SERVICE, Cure.WAIT, (), False),
        ("gpu-fault", "1", 120, Cause.RANK_ERROR, Cure.TEST, (), False),
        ("gpu-launch", "1", 120, Cause.HARDWARE, Cure.TEST, (), False),
        ("gpu-launch", "1", -1, Cause.HARDWARE, Cure.EXCLUDE, ("n1",), False),
        ("gpu-launch", "123", 120, Cause.RANK_ERROR, Cure.ONCE, (), False),
        ("gpu-launch", "123", -1, Cause.ENVIRONMENT, Cure.ONCE, (), False),
        ("read-only-here", "1", -1, Cause.STORAGE, Cure.MOVE, (), False),
        ("read-only-here", "123", -1, Cause.ENVIRONMENT, Cure.ONCE, (), False),
        ("read-only-here", "123", 120, Cause.STORAGE, Cure.ONCE, (), False),
        ("store-name", "123", -1, Cause.NETWORK, Cure.WAIT, (), False),
    ],
)
def test_few_nodes_and_many(
    name: str, nodes: str, step: int, cause: Cause, cure: Cure, blamed: tuple[str, ...], final: bool
) -> None:
    assert on(nodes, name, step) == (cause, cure, blamed, final)


def test_a_launch_that_fails_before_the_first_step_is_left_to_a_test_of_the_devices() -> None:
    verdict = judge(
        Evidence(exits=(raised(*TEXTS["gpu-launch"]),)),
        placement=THREE,
        nodes_count=3,
        step=-1,
        policy=Policy(test_suspects=True),
    )
    assert (verdict.cause, verdict.cure, verdict.blamed) == (Cause.HARDWARE, Cure.TEST, ())


@pytest.mark.parametrize(
    ("said", "step", "ranks", "cause"),
    [
        ("CUDA error: out of memory", -1, (0, 1), Cause.FOREIGN_PROCESS),
        ("CUDA error: out of memory", 120, (0, 1), Cause.GPU_MEMORY),
        ("CUDA error: out of memory", -1, (0,), Cause.GPU_MEMORY),
        ("CUDA out of memory. 70.00 GiB is allocated by PyTorch", -1, (0, 1), Cause.GPU_MEMORY),
        ("CUDA out of memory. This process has 70.00 GiB memory in use.", -1, (0, 1), Cause.GPU_MEMORY),
    ],
)
def test_gpus_of_one_node_that_are_full_before_the_first_step_are_held_by_others(
    said: str, step: int, ranks: tuple[int, ...], cause: Cause
) -> None:
    exits = tuple(raised("RuntimeError", said, rank=rank) for rank in ranks)
    verdict = judge(Evidence(exits=exits), placement=THREE, nodes_count=3, step=step)
    assert verdict.cause is cause and verdict.blamed == (("n1",) if cause is Cause.FOREIGN_PROCESS else ())


def ended(*lines: str, rank: int = 0) -> RankExit:
    return error_rules.marked(RankExit(rank, "n1", 1, None, at=10.0, tail=lines, written_at=9.9))


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        (("NCCL WARN Attribute arch of node cpu not found", "NCCL INFO graph/topo.cc:493 -> 3"), "gpu-topology"),
        (
            ("ConnectTimeout: HTTPSConnectionPool(host='hub', port=443): Max retries exceeded", "192.168.4.75"),
            "service",
        ),
        (
            (
                "NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129",
                "NCCL INFO transport/net.cu:537 -> 2",
                "NCCL WARN Cuda failure 'an illegal memory access was encountered'",
            ),
            "ib-completion",
        ),
        (
            ("OSError: [Errno 16] busy: '.nfs0'", '  File "/x/multiprocessing/util.py", line 3, in _run_finalizers'),
            "teardown",
        ),
        (("NCCL WARN NET/OFI Invalid communicator object", "NCCL INFO transport/net.cc:985 -> 3"), "fabric-other"),
        (("NCCL WARN Call to shm_open failed : Permission denied", "NCCL INFO include/shm.h:41 -> 2"), "access"),
        (("NCCL WARN Something that is new", "Aborted (core dumped)"), "fabric-other"),
        (("ssh: Could not resolve hostname worker-0: Temporary failure in name resolution",), "store-name"),
        (("mkdir: cannot create directory 'run': Permission denied",), "access"),
        (("tee: log.txt: No space left on device", TEXTS["save-failed"][1]), "storage-full"),
        (("tee: log.txt: it went well", TEXTS["save-failed"][1]), "save-failed"),
        (("RLIMIT_NPROC 128: pthread_create failed for thread 18 of 56", "KeyboardInterrupt"), "open-files"),
        (("uncorrectable ECC errors: 0", "[rank3]: ncclRemoteError: a peer", "terminate called after"), "nccl-remote"),
        (("uncorrectable ECC error", "CUDA error: uncorrectable ECC error", "Aborted (core dumped)"), "gpu-ecc"),
        (("F20240612 11:03:11.4 77 x.cpp:9] Check failed: p: CUDA out of memory", "it went on"), "gpu-memory"),
    ],
)
def test_the_words_that_end_a_process_are_known_by_their_form_and_place(lines: tuple[str, ...], name: str) -> None:
    rule = error_rules.rule_of(ended(*lines))
    assert rule is not None and rule.name == name


@pytest.mark.parametrize(
    "after",
    [
        ("SIGABRT",),
        ("This is usually caused by a system or configuration error.", "Please see the manual."),
        ('  File "/opt/job/train.py", line 4, in <module>', "    from .layers import ("),
        (" [[{{node Allreduce_22}}]] [Op:__inference_step]",),
        (
            "Stacktrace:",
            " [1] throw_api_error",
            "   @ CUDA ~/.julia/packages/CUDA/error.jl:27",
            "in expression starting at x.jl:3",
        ),
        ("*** Check failure stack trace: ***", "    @     0x7f1 google::LogMessage::Fail()", "Aborted (core dumped)"),
        (
            "*** and potentially your MPI job)",
            "[n0:7] *** Failing at address: 0x1",
            "[n0:7] [ 0] /lib/libpthread.so(+0x1)",
        ),
        ("\tat org.apache.spark.Executor.run(Executor.java:1)", "Exited with exit code 1."),
        (
            "Last command: run 100",
            "For more information and tips, see the manual",
            "srun: Job step aborted: Waiting up to 32 s",
        ),
        ("╰──────────────╯",),
    ],
)
def test_advice_and_a_traceback_that_was_cut_tell_no_more_than_the_line_before(after: tuple[str, ...]) -> None:
    """So what all ranks wrote there ended them. Had they lived on, it would be what all write at their start."""
    told = ended("x.c:5:10: fatal error: Python.h: No such file or directory", *after)
    other = replace(told, rank=2, node="n2")
    assert [one.shown for one in error_rules.compared((told, other), {})] == [told.shown, other.shown] != [(), ()]
    lived = replace(ended(*told.tail, "it went on", rank=4), node="n3")
    assert error_rules.compared((lived, replace(lived, node="n1")), {})[0].shown == ()
    assert ended(*after).shown == (), "there may be nothing else"


@pytest.mark.parametrize(
    ("said", "step", "nodes", "cause"),
    [
        ("[n1] Kokkos::Cuda::initialize ERROR: kernels for 3.7, a device of 6.0", -1, "123", Cause.ENVIRONMENT),
        ("launcher[12]: error: plugin 7 does not start", -1, "123", Cause.ENVIRONMENT),
        (" .. pid 75: Test failure common.cu:844", -1, "123", Cause.ENVIRONMENT),
        ("ncclNewError: words 7\nncclNewInit: a family that is new", -1, "123", Cause.ENVIRONMENT),
        ("launcher[12]: error: plugin 7 does not start", 120, "123", Cause.RANK_ERROR),  # it had begun
        ("launcher[12]: error: plugin 7 does not start", -1, "1", Cause.RANK_ERROR),  # and no other node says so
        ("there is nothing to train on", -1, "123", Cause.RANK_ERROR),  # the script may have said so
        ("train.py: there is nothing to train on", -1, "123", Cause.RANK_ERROR),
        ("Error: nothing to train on", -1, "123", Cause.RANK_ERROR),
        ("common.cu:844: falling back to one kernel", -1, "123", Cause.RANK_ERROR),  # and lives on
        ("zoo.errors.BadSize: file.cc:12", -1, "123", Cause.RANK_ERROR),  # an exception, as Python heads it
        ('  File "/opt/job/train.py", line 4, in <module>', -1, "123", Cause.RANK_ERROR),
        ("", -1, "123", Cause.RANK_ERROR),
    ],
)
def test_what_a_program_that_is_not_the_script_says_on_all_nodes_at_the_start_is_the_environments(
    said: str, step: int, nodes: str, cause: Cause
) -> None:
    """In words that no row knows. It is no sign of what Python's own code does."""
    exits = tuple(replace(ended(*said.splitlines(), rank=int(one)), node=f"n{one}") for one in nodes)
    verdict = judge(Evidence(exits=exits), placement=THREE, nodes_count=3, step=step)
    assert (verdict.cause, verdict.blamed, verdict.final) == (cause, (), False)
    assert ("no exception of Python" in verdict.sentence) == (cause is Cause.ENVIRONMENT)


@pytest.mark.parametrize("how", [{"step": 9000}, {"log_step": 9000}])
def test_steps_that_ranks_only_print_are_no_start(how: Any) -> None:
    said = ended("launcher[12]: error: plugin 7 does not start")
    exits = tuple(replace(said, rank=n, node=f"n{n}", **how) for n in (1, 2, 3))
    assert judge(Evidence(exits=exits), placement=THREE, nodes_count=3, step=-1).cause is Cause.RANK_ERROR


@pytest.mark.parametrize(("before", "cause"), [("n2", Cause.ENVIRONMENT), ("n1", Cause.HARDWARE)])
def test_what_only_a_machine_causes_is_the_environments_if_another_node_has_it_too(before: str, cause: Cause) -> None:
    exits = (raised("RuntimeError", "CUDA error: invalid device ordinal"),)
    sighting = Sighting("machine: gpu-ordinal", 0, -1, (before,))
    verdict = judge(Evidence(exits=exits), placement=THREE, nodes_count=3, step=-1, sightings=(sighting,))
    assert (verdict.cause, verdict.final) == (cause, before == "n2")
    assert ("the environment is at fault" in verdict.sentence) == verdict.final


@pytest.mark.parametrize(
    ("step", "lines", "name"),
    [
        (-1, ("no CUDA GPUs are available", "it goes on"), "gpu-missing"),
        (500, ("no CUDA GPUs are available", "it goes on"), ""),
        (500, ("it goes on", "no CUDA GPUs are available"), "gpu-missing"),  # its last words
        (500, ("uncorrectable ECC error", "it goes on"), "gpu-ecc"),
    ],
)
def test_what_keeps_a_rank_from_its_first_step_does_not_end_it_later(
    step: int, lines: tuple[str, ...], name: str
) -> None:
    rule = error_rules.rule_of(replace(ended(*lines), step=step))
    assert (rule.name if rule is not None else "") == name


def test_a_read_only_place_is_no_local_disk_for_the_name_of_its_file() -> None:
    found = rule_of(raised("OSError", "[Errno 30] Read-only file system: '/data/detector/ssd.log'"))
    assert found is not None and found.name == "storage-full"


@pytest.mark.parametrize(
    ("step", "ranks_count", "cause"),
    [
        (-1, 6, Cause.ENVIRONMENT),
        (-1, 5, Cause.VICTIMS_ONLY),  # of the sixth nothing was heard
        (120, 6, Cause.VICTIMS_ONLY),
    ],
)
def test_a_system_call_that_fails_for_all_ranks_at_the_start_is_the_environments(
    step: int, ranks_count: int, cause: Cause
) -> None:
    exits = tuple(
        raised("RuntimeError", "NCCL Error 2: unhandled system error", f"n{rank // 2 + 1}", rank)
        for rank in range(ranks_count)
    )
    verdict = judge(Evidence(exits=exits), placement=THREE, nodes_count=3, step=step)
    assert (verdict.cause, verdict.blamed) == (cause, ())


@pytest.mark.parametrize(("ranks", "moved"), [((0, 1), 0), ((0,), -1)])
def test_a_node_whose_ranks_were_all_killed_may_be_at_fault(ranks: tuple[int, ...], moved: int) -> None:
    exits = tuple(fell(rank, signal=9) for rank in ranks)
    first = judge(Evidence(exits=exits), placement=THREE, nodes_count=3)
    assert (first.cause, first.suspects, first.rank, first.moves) == (Cause.KILLED, ("n1",), moved, False)
    again = judge(Evidence(exits=exits), placement=THREE, nodes_count=3, suspicion={"n1": 1})
    assert (again.moves, again.blamed) == (moved >= 0, ())


def test_the_verdict_says_what_and_where() -> None:
    ecc = Evidence(exits=(raised(*TEXTS["gpu-ecc"]),))
    assert judge(ecc, placement=THREE, nodes_count=3).sentence == (
        "rank 0 on n1 raised RuntimeError: CUDA error: uncorrectable ECC error encountered at step 120 (exit code 1);"
        " this means an uncorrectable memory or NVLink error of a GPU, on n1 only: n1 is at fault"
    )
    foreign = Evidence(exits=(raised(*TEXTS["foreign-process"]),))
    assert judge(foreign).sentence.endswith("(process 4711 holds 70.5 GiB of it), on n1 only: n1 is at fault")
    both = Evidence(exits=(raised(*TEXTS["usage"]), raised(*TEXTS["usage"], node="n2", rank=2)))
    assert judge(both, step=-1).sentence.endswith("wrong arguments, on 2 nodes at once: a restart would not help")
    tail = replace(fell(signal=11), tail=("Fatal Python error: Segmentation fault",))
    assert judge(Evidence(exits=(tail,))).sentence.endswith("Fatal Python error: Segmentation fault")


def test_what_one_node_was_excluded_for_is_the_environments_if_the_next_shows_it_too() -> None:
    first = judge(Evidence(exits=(raised(*TEXTS["gpu-missing"]),)), step=-1, attempt=1, nodes_count=3)
    before = error_rules_sighting(first, 1, -1)
    other = Evidence(exits=(raised(*TEXTS["gpu-missing"], node="n2", rank=2),))
    again = judge(other, step=-1, attempt=2, sightings=(before,), nodes_count=3)
    assert again.final and again.cleared == ("n1",) and again.failure is Failure.SCRIPT
    assert not judge(other, step=5, attempt=2, sightings=(before,), nodes_count=3).final, "it came farther"
    same = Evidence(exits=(raised(*TEXTS["gpu-missing"]),))
    assert not judge(same, step=-1, attempt=2, sightings=(before,), nodes_count=3).final


def error_rules_sighting(verdict, attempt, step):  # type: ignore[no-untyped-def]
    return Sighting(verdict.signature, attempt, step, verdict.blamed)


BOX = placed("n1")


def missing(*ranks: int) -> Evidence:
    return Evidence(exits=tuple(raised(*TEXTS["gpu-missing"], rank=rank) for rank in ranks))


def test_with_one_node_and_no_other_to_take_its_place_nobody_waits_for_a_machine_to_change() -> None:
    """All ranks see no GPU: the end. Some see none: one restart, and the same again is the end."""
    every = judge(missing(0, 1), placement=BOX, nodes_count=1, step=-1)
    assert (every.cause, every.cure, every.final, every.blamed) == (Cause.ENVIRONMENT, Cure.END, True, ())
    assert every.sentence.endswith("this means a GPU that the process does not see: a restart would not help")
    some = judge(missing(1), placement=BOX, nodes_count=1, step=-1)
    assert (some.cause, some.cure, some.final, some.blamed) == (Cause.HARDWARE, Cure.ONCE, False, ())
    later = judge(missing(0, 1), placement=BOX, nodes_count=1, step=120)
    assert (later.cure, later.final, later.blamed) == (Cure.ONCE, False, ()), "it had worked"


def test_with_one_node_of_a_scheduler_another_node_shows_whose_it_is() -> None:
    verdict = judge(missing(0, 1), placement=BOX, nodes_count=1, step=-1, policy=Policy(can_requeue=True))
    assert (verdict.cure, verdict.blamed, verdict.final) == (Cure.EXCLUDE, ("n1",), False)


def test_the_end_of_a_long_message_is_read_too() -> None:
    frames = "".join(
        f'  File "/opt/pipeline_{n}.py", line {n}, in stage\n    yield from source({n})\n' for n in range(100)
    )
    begun = "Caught OSError in DataLoader worker process 3.\nOriginal Traceback (most recent call last):\n"
    died = raised("OSError", begun + frames + "OSError: [Errno 28] No space left on device: '/tmp/cache/x'")
    found = rule_of(died)
    assert found is not None and found.cause is Cause.LOCAL_DISK
