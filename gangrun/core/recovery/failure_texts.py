"""The texts by which failures are known: a table of rows in families, in the order in which they are tried.

Data only. Each row has a pattern, the cause that it shows, and two cures: one for a failure on one node or a few, one
for the same failure on many nodes at once. What only a machine can cause is the machine's on one node, and the
environment's or the code's on all. ``error_rules`` matches texts with the rows; ``docs/failures.md`` is drawn from
them. Patterns are of lower case, as the texts are that they are matched with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gangrun.core.model import Cause, Cure
from gangrun.core.recovery.failure_words import WORDS
from gangrun.core.recovery.speakers import Speaker

CUDA_DOCS = "CUDA runtime API, cudaError_t"
NCCL_DOCS = "NCCL user guide, ncclResult_t and troubleshooting"
GLOO_SOURCE = "gloo, TCP transport"
TORCH_SOURCE = "PyTorch, c10d"
ERRNO = "errno(3)"
HTTP = "RFC 9110, RFC 6585"
ACCELERATORS = "CUDA runtime API, cudaError_t; HIP, Level Zero, Neuron, Gaudi, CANN and PJRT runtimes"

PLACED = r"(?!x)x"  # matches nothing: the row has no words of its own, ``error_rules`` finds it in another way
PEERS = frozenset({Speaker.FABRIC, Speaker.GANG})

RESTART, ONCE, END, WAIT = Cure.RESTART, Cure.ONCE, Cure.END, Cure.WAIT
EXCLUDE, TEST, MOVE, VICTIM, MEET = Cure.EXCLUDE, Cure.TEST, Cure.MOVE, Cure.VICTIM, Cure.MEET
VICTIMS = (VICTIM, MEET)  # cures of rows that say what a peer of a failed rank says


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: what the text says, in words, and what follows from it."""

    name: str
    says: str
    pattern: str
    cause: Cause
    few: Cure  # seen on one node, or on a few of many
    many: Cure  # seen on many nodes at once
    source: str
    not_of: frozenset[Speaker] = frozenset()  # whose words these are not, though the pattern matches them


def _errno(numbers: str) -> str:
    """An error number as Python, Rust and HDF5 write it."""
    return rf"(\[errno ({numbers})\]|os error ({numbers})\)|os \{{ code: ({numbers})\b|errno = ({numbers})\b)"


_LOCAL_PATH = (
    r"(?<![\w.*/-])['\"]?/(tmp|var|dev/shm|run|l(ocal)?[_-]?scratch|local\w*|scratch[_/-]local|(nvme|ssd|raid"
    r"|disk)\d*|root"
    r"|mnt/(local|nvme|ssd|resource|disks?)\d*)\b"
)
_PLACES = (
    r"(gloo|[nrh]ccl|oneccl|net/(ib|ofi|socket)|\bucx\b|ucp_ep|libfabric|c10d|tcpstore|torch\.distributed|processgroup"
    r"|store->|rendezvous|dist(backend|network|store)?error|opal error|pmix error|\borted?\b|collective ops"
    r"|coordination (service|agent))"
)
_LOST = (
    r"(connection (closed|reset|refused|timed out)|closed by (remote )?peer|reset by peer|broken pipe|socket closed|"
    r"timed? ?out|recv 0 bytes|got 0 bytes|failed to recv|no route to host|remote process exited|was aborted|"
    r"read error|writev|connectfullmesh failed|connect(ion)? timeout|bytes failed|recvvalue failed|unresponsive re"
    r"|retry (count|counter)? ?exceeded|unreachable|lost communication|failed to connect|completed with error|(recv"
    r"|send) failed)"
)

# Classes of exceptions of libraries that ask a service, and libraries that ask none.
_CLIENT_ERRORS = (
    "connect|timeout|timedout|unavailable|throttl|retr(y|ies)|ratelimit|toomany|disconnect|network|transport|proxyerr"
    "|streaming|payload|busy|credentialretrieval|clientos|nobrokers|abandoned|incompleteread|internalserver"
)
_NO_CLIENTS = (
    "asyncio|multiprocessing|concurrent|filelock|queue|ray|threading|subprocess|torch|portalocker|joblib|horovod"
    "|networkx"
)

# Devices and drivers: only a machine can cause these.
DEVICES: tuple[Rule, ...] = (
    Rule("gpu-ecc", "an uncorrectable memory or NVLink error of a GPU",
         r"uncorrectable (ecc|nvlink)|ecc_?uncorrectable|nvlink_?uncorrectable|double.bit ecc|ecc error encountered"
         r"|\becc\b(?![^\n]*(\bkeys?\b|curve|cert|crypt|signature))[^\n]{0,30}(error|fail)|page retirement"
         r"|row.?remap\w* (fail|pending)|error_?contained\b|cuda error: contained error"
         r"|invalid access of peer gpu memory"
         r"|nvlink.{0,30}(fatal|is down|inactive)|nrt_exec_hw_err\w*|\bhbm_ue\b|row.?remapping (failed|pending)",
         Cause.HARDWARE, EXCLUDE, ONCE, ACCELERATORS),
    Rule("gpu-lost", "a GPU that is lost or needs a reset",
         r"gpu (is lost|has fallen|requires reset)|fallen off the bus|gpu_?is_?lost"
         r"|unable to determine the device handle"
         r"|reset_?required|reboot the system to recover|hardware_?stack_?error|hardware stack error"
         r"|\bxid\b( \(pci:[^)]*\))?[ :=]+(48|62|64|74|79|95|109|110|119|120|140|143|14[4-9]|15[0-6])\b"
         r"|error 719.{0,80}nvlink|hw exception by gpu|error_device_lost"
         r"|device\[\d+\] lost heartbeat"
         r"|synstatus[^\n]{0,20}device reset|\b(gpu|device) (was|is) lost\b|nvmlerror_(corruptedinforom|resetrequired)",
         Cause.HARDWARE, EXCLUDE, ONCE, "NVML API, nvmlReturn_t; HIP, Level Zero, Gaudi and CANN runtimes"),
    Rule("gpu-fabric", "an NVSwitch fabric that is not ready",
         r"(cuda|error \()[^\n]{0,60}system not yet initialized|systemnotready|system_not_ready|error 802"
         r"|fabric manager (is not|never|not run)"
         r"|nvlink sharp|multicast memory|\bimex\b[^\n]{0,60}(fail|error|not)"
         r"|cuda[^\n]{0,60}cannot be performed in the present state",
         Cause.HARDWARE, EXCLUDE, END, CUDA_DOCS),
    Rule("memory-error", "an uncorrectable error of the node's memory",
         r"errno 133\]|memory page has hardware error|\[hardware error\]|bus_mceerr|hardware memory error"
         r"|machine check exception",
         Cause.HARDWARE, EXCLUDE, ONCE, ERRNO),
    Rule("driver-mismatch", "a driver that does not fit its libraries",
         r"driver/library version mismatch|rm_?version_?mismatch|nvml/rm version mismatch"
         r"|nvidia driver on your system is too old"
         r"|driver version is insufficient|not supported in the installed cuda driver|requires_?newer_?driver"
         r"|unsupported toolchain|unsupported_?ptx_?version|api mismatch: the client|driver is a stub library"
         r"|(cuda|nvidia) driver.{0,40}too old|update your (gpu|nvidia) driver"
         r"|ptx jit compiler library not found|jit_?compiler_?not_?found|libnvidia-ptxjitcompiler"
         r"|unsupported display driver ?/ ?cuda driver|systemdrivermismatch|system_driver_mismatch|insufficientdriver"
         r"|forward compatibility was attempted on non.supported|compatnotsupportedondevice",
         Cause.HARDWARE, EXCLUDE, END, CUDA_DOCS),
    Rule("device-access", "a device that the process may not open",
         r"/dev/(kfd|neuron|nvidia|accel|davinci|habana|dri|infiniband|dxg)[^\n]{0,80}(permission denied|not permitted)"
         r"|errno (1|13)\][^\n]*: b?['\"]/dev/(kfd|neuron|nvidia|accel|davinci|habana|dri|infiniband|dxg)",
         Cause.ENVIRONMENT, EXCLUDE, END, ERRNO),
    Rule("gpu-missing", "a GPU that the process does not see",
         r"no (cuda|rocm).capable device|no cuda gpus are available|(cuda|hip)_?error_?no_?device"
         r"|found no nvidia driver"
         r"|\b(no|0) ((cuda|nvidia|hip|rocm|amd)[ -])?(gpus?|accelerators?|(xpu|npu|hpu|tpu|neuron) (device|platform"
         r"|core)s?)"
         r"( devices?)? (is |are |was |were )?(found|available|detected|visible|present)|no supported gpu"
         r"|no gpu/tpu found"
         r"|no visible (gpu|tpu|cuda)|no supported devices found for platform"
         r"|runtimeerror: unable to initialize backend(?![^\n]*already in use)"
         r"|explicitly assigned to /device:\w+:\d+ but available devices are|error_device_not_found"
         r"|rock module is not loaded"
         r"|(open|opening)[^\n]{0,12} /dev/(kfd|neuron|nvidia|accel|davinci|habana)|call to cuinit results in"
         r"|device without cuda library|could not find cuda drivers|failed call to hipinit|hsa error: "
         r"|could not open the (nd\d|device index)|neuron (runtime|driver)[^\n]{0,20}(could not|not|fail)"
         r"|\bnrt_init\b[^\n]{0,60}(error|fail)|(?<!already acquired\] )device ?acquire\b[^\n]{0,60}failed"
         r"|/dev/(kfd|neuron|nvidia|accel|davinci|habana|dri/|dxg)[\w-]*\W{1,3}no such file|device_absent|\bel0001\b"
         r"|aclrtsetdevice"
         r"|tpu initialization failed(?![^\n]*busy)"
         r"|cuda (is |was )?(not |un)(available|initialized|found)|cuda\.is_available\(\) (is|returned|==) ?false"
         r"|setup doesn't support bf16/gpu|gpu access blocked|gpu memory access fault"
         r"|cuda[^\n]{0,60}os call failed|cuda_?error_?operating_?system|device_?not_?licensed"
         r"|nvml.{0,40}insufficient permissions"
         r"|nvml_success == .{0,120}internal assert|nvidia-container-cli|could not select device driver"
         r"|couldn't communicate with the nvidia driver|nvidia-smi has failed|failed to initialize nvml"
         r"|nvml_?error_?(driver_?not_?loaded|library_?not_?found|unknown|uninitialized|not_?found|irq_?issue"
         r"|timeout)\b"
         r"|nvml.{0,30}driver not loaded"
         r"|nvml shared library not found|libnvidia-ml|cuda runtime error \(3\)"
         r"|failed call to cuinit|cuinit\W[^\n]{0,40}fail|(cuda|nvml)_?error_?(not_?|un)initialized"
         r"|cudagetdevicecount|cuda\w+\(\)( on gpu:\d+)? failed\. status|nvml\w*\([^\n]{0,60}(failed|error)"
         r"|(device|gpu) handle[^\n]{0,60}unknown error"
         r"|cuda driver initialization failed|cudaerrorinitializationerror|cuda error: initialization error"
         r"|libcuda(debugger)?\.so[.\d]*(: cannot open| (cannot|not) found)|find libcuda\b"
         r"|libnvidia-[\w-]+\.so[.\d]*: cannot open"
         r"|hip error: (not initialized|initialization error)|valid grid license"
         r"|cuda (driver )?unknown error|setting the available devices to be zero",
         Cause.HARDWARE, EXCLUDE, END, ACCELERATORS),
    Rule("gpu-count", "fewer GPUs than the script wants",  # words of scripts, which may compare them with anything
         r"machine only has|cuda is required"
         r"|requires? (a |an |at least (one|1) )?((cuda|nvidia)[ -])*gpus?\b.{0,30}(not|none|but|cpu)"
         r"|not enough (gpus|cuda devices)|\bfound (only )?\d+ (cuda )?gpus?\b|no devices? (was|were) found"
         r"|(expected|requested|needs?|requires?) \d+ (cuda |nvidia )?gpus?\b[^\n]{0,60}(but|only|found|available"
         r"|have|got)",
         Cause.HARDWARE, EXCLUDE, END, "scripts"),
    Rule("gpu-unknown", "an unknown error of the GPU's driver",
         r"(cuda|cuda runtime|cuda driver|hip|triton|nvrtc)[^\n]{0,20}(error|failure)[^\n]{0,30}\bunknown error"
         r"|cuda_?error_?unknown|unknown_cuda_error|cudasuccess \(999 vs",
         Cause.HARDWARE, EXCLUDE, ONCE, CUDA_DOCS),
    Rule("gpu-ordinal", "a GPU number that the node does not have",
         r"device < num_gpus internal assert|device id must be less than gpu count|(cuda|hip"
         r"|failure)[^\n]{0,80}invalid device ordinal|error_?invalid_?device\b"
         r"|cuda device \d+ but torch\.cuda\.device_count\(\) is|^assertionerror: invalid device id",
         Cause.HARDWARE, EXCLUDE, END, CUDA_DOCS),
    Rule("gpu-busy", "a GPU that is busy or unavailable",
         r"devices?(\(s\))? (is|are|is/are) busy or unavailable|devicesunavailable|devices_unavailable"
         r"|\bmps (client|server|control)\b|mps_(server|max|connection"
         r"|rpc)\w*"
         r"|(tpu|accel|neuron|kfd)\w*[^\n]{0,60}resource busy"
         r"|resource busy: /dev/neuron|neuron cores?\(s\) not available",
         Cause.HARDWARE, EXCLUDE, ONCE, CUDA_DOCS),
    Rule("foreign-process", "a GPU, or memory of it, that another program holds",  # or by the numbers
         r"(thread|process)\)? device already in use|device already acquired|tpu is already in use"
         r"|\b(gpu|[txnh]pu|device|accel\w*|neuron\w*|cuda|chip|core)\w*\b[^\n]{0,80}"
         r"(in use|held|locked|used) by (another|other|a different) process"
         r"|the last training process is running",
         Cause.FOREIGN_PROCESS, EXCLUDE, ONCE, "PyTorch, caching allocator"),
    Rule("gpu-topology", "GPUs that do not see each other as they should",
         r"failed to find reverse path|could not read node #|attribute \w+ of node \w+ not found"
         r"|unsupported topology|topo[^\n]{0,40}(fail|invalid|inconsistent)"
         r"|(xml|graph/)\w*[^\n]{0,40}nccl warn[^\n]*fail",
         Cause.HARDWARE, MOVE, ONCE, NCCL_DOCS),
    Rule("rdma-missing", "a missing InfiniBand device",
         r"/sys/class/infiniband|net/ib ?: ?no (device|active|ib)|no ib devices? found|failed to open ib"
         r"|ibv_(open_device|get_device_list)"
         r"|(unable|failed) to open (hca|(rdma )?device).{0,40}mlx|hca \w+ not found|no usable mlx"
         r"|no active port found|no active ib port|no usable (ib|rdma)|no infiniband device"
         r"|network ib not found|open libibverbs|lib(ibverbs|mlx\d|rdmacm|efa)[\w.-]*: cannot open"
         r"|ibv_modify_qp.{0,60}no such device|fabric access domain",
         Cause.HARDWARE, EXCLUDE, END, NCCL_DOCS),
    Rule("rdma-memory", "a limit on locked memory, or RDMA queues that cannot be made",
         r"((ibv|mlx\ddv)_(reg_mr|create_\w+|alloc_pd)\w*).{0,60}(fail|error|cannot)|rlimit_memlock|max locked memory"
         r"|memlock"
         r"|(\b(ib|rdma|ucx|ofi|efa|nccl|hca|gdr)|mlx)[^\n]{0,80}"
         r"(memory registration failed|unable to register (memory|mr)|cannot allocate memory)",
         Cause.HARDWARE, EXCLUDE, END, NCCL_DOCS),
    Rule("rdma-local", "an error of the node's own InfiniBand device",
         r"ib_wc_loc_\w+|got completion[^\n]{0,200}(status=|error )[124]\b[^\n]{0,60}\bvendor"
         r"|async (fatal )?event.{0,60}(catastrophic|fatal)",
         Cause.HARDWARE, EXCLUDE, ONCE, NCCL_DOCS),
    Rule("rdma-route", "an RDMA connection that the node could not set up",  # its own port and routes, or the peer's
         r"modify[_ ]qp\b.{0,120}(fail|error|timed out|unreachable)|(fail|error)\w*.{0,20}\bmodify[_ ]qp\b"
         r"|no remote registered memory access transport|\brtr\b.{0,40}(fail|error|timed out)",
         Cause.NETWORK, MOVE, WAIT, NCCL_DOCS),
    Rule("fabric", "a network interface or a launcher's part that the process could not open",
         r"initialize any net plugin|unable to find a protocol that worked|fi_getinfo\W[^\n]{0,20}fail"
         r"|creating new endpoint for domain|can't open hfi|assign_context command failed|fabric is not available",
         Cause.NETWORK, MOVE, ONCE, "libfabric, UCX, PSM2, PMIx; aws-ofi-nccl"),
    Rule("no-interface", "a network interface that the node does not have",
         r"no socket interface found|unable to find (interface|address) for|ifa != nullptr"
         r"|net/socket[^\n]{0,20}no interface found"
         r"|no eligible providers were found|couldn't find any optimal provider"
         r"|errno 19\] no such device\s*$|no network interfaces? (matched|found)"
         r"|interface (ib|eth|en|bond|hsn|roce)\w* (was |is )?(not found|does not exist|down)",
         Cause.NETWORK, EXCLUDE, END, NCCL_DOCS),
    Rule("cpu-instruction", "an instruction that the CPU does not have",
         r"compiled to use \w+ instructions, but these|signal 4 \(illegal|fatal python error: illegal instruction"
         r"|your machine doesn't support: |\bcpu (does not|doesn't) support"
         r"|\bsigill\b|illegal instruction \(core|(^|signal: |error: )illegal instruction\.?\s*$",
         Cause.CPU, EXCLUDE, ONCE, "signal(7)"),
)  # fmt: skip

# The program, what it was given and what is installed: another node does not cure most of these.
PROGRAM: tuple[Rule, ...] = (
    Rule("device-assert", "an assertion of a kernel, such as an index out of range",
         r"device.side assert\b|assertion `.{1,200}` failed", Cause.RANK_ERROR, ONCE, ONCE, CUDA_DOCS),
    Rule("no-kernel", "a GPU for which the program has no code",
         r"no kernel image|no_?kernel_?image|not compatible with the current pytorch|unsupported gpu architecture"
         r"|no_?binary_?for_?gpu|compiled for compute capability|status_error_invalid_isa"
         r"|invalid kernel file|ptx (jit compilation was disabled|contains unsupported)|invalid value for --gpu-arch"
         r"|cuda error: (file|shared object symbol) not found|tensilelibrary|for gpu arch|invalid device function"
         r"|(device )?kernel image is invalid"
         r"|ptx jit compilation failed"
         r"|invalid_?(ptx|kernel_?image)\b|status_arch_mismatch|ptxas (fatal|error)|requires? (a )?(gpu|device)s? with "
         r"(compute )?capability|only supports? .{0,40}(gpus? or newer|(gpu|cuda) architectures?|compute capability)",
         Cause.ENVIRONMENT, EXCLUDE, END, CUDA_DOCS),
    Rule("cuda-usage", "a wrong use of CUDA",
         r"invalid configuration argument|invalid resource handle|invalid device context|invalid pitch argument"
         r"|(cuda|hip)( runtime)? (error|failure)[^\n]{0,8} (invalid (?!program)|peer access|named symbol not found"
         r"|array is"
         r"|resource (already|not) mapped|part or all|pointer does not|cannot set while|profiler|limit is not"
         r"|launch uses"
         r"|capture was|cluster|a function handle|the (graph|provided execution)|wait operation)"
         r"|hsa_status_error_invalid_(?!isa|code)"
         r"|too many (resources requested|blocks in cooperative)|stream is capturing|during capture|stream_?capture"
         r"|capture_?(unsupported|invalidated)|cooperative_?launch_?too_?large|launch_?out_?of_?resources",
         Cause.RANK_ERROR, RESTART, ONCE, CUDA_DOCS),
    Rule("cuda-fork", "CUDA used after a fork", r"re-initialize cuda in forked", Cause.RANK_ERROR, END, END,
         "PyTorch, torch.cuda"),
    Rule("cuda-not-built", "a PyTorch without CUDA", r"not compiled with cuda|built without nccl|doesn't have nccl",
         Cause.ENVIRONMENT, MOVE, END, "PyTorch, torch.cuda"),
    Rule("gpu-memory", "too little GPU memory",
         r"\b(cuda|hip|gpu|triton|[xnht]pu|mlu|musa)\b[^\n]{0,60}\bout of memory|cuda runtime error \(2\)"
         r"|cudaerrormemoryallocation"
         r"|error_out_of_(device_)?memory|(cublas|cudnn|cusparse|cusolver|cufft)_\w*(alloc_failed"
         r"|insufficient_resources)"
         r"|hiperror(_t\((2|1002)\)|outofmemory|memoryallocation)"
         r"|cuda failure 2\b|allocator_failure|nrt_\w+[^\n]{0,40}allocation failure"
         r"|(cuda|torch)\.outofmemoryerror|outofmemoryerror: (cuda|hip)"
         r"|resource_?exhausted.{0,80}alloc|xlaruntimeerror: resource_exhausted"
         r"|failed to (cuda|hip) [mc]?alloc",
         Cause.GPU_MEMORY, ONCE, ONCE, CUDA_DOCS),
    Rule("nccl-usage", "a wrong use of NCCL",
         r"ncclinvalid(usage|argument)|duplicate gpu detected|invalid usage", Cause.RANK_ERROR, ONCE, ONCE, NCCL_DOCS),
    Rule("usage", "wrong arguments",
         r"^usage: |\berror: (unrecognized arguments|the following arguments are required|argument .+: )"
         r"|no such option: -|missing required (argument|option)|unrecognized arguments: "
         r"|is not a valid model identifier|incorrect path_or_model_id"
         r"|check batch related parameters\. train_batch_size|\bcould not override '",
         Cause.USAGE, END, END, "argparse, DeepSpeed"),
    Rule("syntax", "a script that Python cannot read", r"^(syntaxerror|indentationerror|taberror)\b",
         Cause.USAGE, MOVE, END, "Python language reference"),
    Rule("library", "a shared library that is missing or too old",
         r"^(?![^\n]*(plugin|could not load dynamic library|dlerror))[^\n]*cannot open shared object file"
         r"|undefined symbol: |with link time reference|invalid elf header|wrong elf class|\.so\S*: (file too short"
         r"|cannot enable)"
         r"|version `\w+_[\d.]+' not found|in static tls block|shared object initialization failed"
         r"|cudnn version incompatib|version_mismatch|sublibrary_loading_failed|mismatched nccl version"
         r"|compiled with different cuda|operator torchvision::\w+ does not exist|cuda setup failed"
         r"|cuda version \([\d.]+\) mismatches|was not built with slurm",
         Cause.ENVIRONMENT, MOVE, END, "ld.so(8)"),
    Rule("setup-other", "a part of the installation that cannot be found, built or loaded",
         r"getpwuid\(\)|unsupported locale|^oserror: \S*\.so[.\d]*: |no package metadata was found"
         r"|exec format error",
         Cause.ENVIRONMENT, MOVE, ONCE, "importlib, setuptools, cpp_extension, Inductor and Triton"),
    Rule("config", "a configuration or an argument that its reader refuses", PLACED, Cause.USAGE, END, END,
         "argparse, click, Hydra, OmegaConf, absl, pydantic, YAML"),
    Rule("import", "a module that cannot be imported", r"^(modulenotfounderror|importerror)\b|(^|error|failed"
         r"|because|: )[^\n]{0,200}no module named ",
         Cause.USAGE, MOVE, END, "Python language reference"),
    Rule("script-missing", "a script that is not there", r"can't open file '|gangrun: cannot run "
         r"|^exit code 12[67]$|bad interpreter: |execve\(\): "
         r"|^fatal python error: (init|py_?initialize)",
         Cause.USAGE, MOVE, END, "Python command line"),
    Rule("toolchain", "a compiler or build tool that is missing or fails",
         r"failed to find c compiler|python\.h: no such file|cuda_home environment variable is not set|nvcc: not found"
         r"|error compiling objects|no working c\+\+ compiler|invalidcxxcompiler|no such file or directory: '(nvcc|gcc"
         r"|g\+\+|cc|hipcc"
         r"|ninja|cmake|make|ptxas|ldconfig|git|ffmpeg|java|numactl|nvidia-smi|rocm-smi|ip|lscpu|lspci|hostname)'"
         r"|ninja is required|\bld: cannot find -l|ld returned \d+ exit status|error building extension"
         r"|unable to jit load|no (c\+\+|c|cuda) compiler|gcc failed with"
         r"|(^|: )\S*calledprocesserror: command [^\n]{0,60}(gcc|g\+\+|c\+\+|nvcc|hipcc|clang|ninja|cmake|ptxas"
         r"|ldconfig|(?<=[/'\"])cc)(?!\w)|fatal error: \S+\.(h|hpp|cuh): no such file",
         Cause.ENVIRONMENT, MOVE, END, "PyTorch, cpp_extension; Triton"),
)  # fmt: skip

# A sick device or the code: both raise these.
FAULTS: tuple[Rule, ...] = (
    Rule("gpu-launch", "a kernel that a GPU could not run to its end, sick or by a bug",
         r"unspecified launch failure|launch_?failure|launch_?failed"
         r"|cudnn_status_(execution_failed|internal_error|mapping_error|not_initialized)"
         r"|cublas_status_(execution_failed|internal_error|not_initialized|mapping_error)|cufft_\w*_error"
         r"|cublas runtime error : (the gpu program failed|an (internal operation|access to gpu)|library not init)",
         Cause.HARDWARE, TEST, ONCE, "CUDA runtime API; cuDNN, cuBLAS and cuFFT status codes"),
    Rule("gpu-fault", "a fault of a kernel, by a bug or by a sick GPU",
         r"illegal memory access|illegal_?address"
         r"|an illegal instruction was encountered|error_?illegal_?instruction|launch (timed out|and was terminated)"
         r"|launch_?timeout|misaligned[ _]?address|external device error|invalid program counter|invalid_?(pc"
         r"|program_?counter)\b"
         r"|(global|shared) address space|mapping of buffer object failed|map_?buffer_?object|context is destroyed"
         r"|cudnn_status_success \(\d+ vs|gpu memcpy failed|gpu->\w+ memcpy failed|failed to launch \w+$"
         r"|cuda error: (operation|device).{0,40}(not (permitted|supported)|unavailable)|unable to find an engine"
         r"|(rocblas|hipblas|miopen|rocsparse|rocsolver|hipsparse|hipfft)_?status_?\w*(internal|unknown|initialized"
         r"|execution)"
         r"|cusolver_status|cusparse_status_\w+_(failed|error)|external_?device|memory access fault by gpu|gpu hang"
         r"|hsa_status_error_(exception|memory_(fault|aperture_violation)|illegal_instruction)",
         Cause.RANK_ERROR, TEST, ONCE, "CUDA runtime API; the node's or the program's by the table of driver reports"),
)  # fmt: skip

# Storage.
STORAGE: tuple[Rule, ...] = (
    Rule("worker-memory", "too little shared memory for the workers of a DataLoader",
         r"out of shared memory|insufficient shared memory|killed by signal: bus error"
         r"|unexpected bus error|bus error: nonexistent physical address", Cause.OOM, MOVE, ONCE,
         "PyTorch, DataLoader"),
    Rule("shared-memory", "no room in the node's shared memory",
         r"unable to (open|allocate|resize) (a )?(shared memory|shm)(?![^\n]*(too many open|\(2\)))"
         r"|unable to write to file </torch_"
         r"|/dev/shm.{0,200}(no space|cannot allocate)|(no space|cannot allocate|failed|error).{0,200}/dev/shm"
         r"|posix_fallocate failed",
         Cause.LOCAL_DISK, EXCLUDE, ONCE, "shm_overview(7)"),
    Rule("no-tmpdir", "no usable directory for temporary files", r"no usable temporary directory",
         Cause.LOCAL_DISK, EXCLUDE, ONCE, "Python tempfile"),
    Rule("local-disk", "a local disk that is full, read-only or broken",
         r"(errno (28|30|5|122)\]|no space left|read-only file system|input/output error|quota exceeded).{0,120}"
         + _LOCAL_PATH + r"|(^|[ '\"(])" + _LOCAL_PATH
         + r"[^\n]{0,120}: (no space left|read-only file system|input/output error)"
         r"|structure needs cleaning|" + _errno("117|74"),
         Cause.LOCAL_DISK, EXCLUDE, WAIT, ERRNO),
    Rule("local-access", "a local directory that belongs to somebody else",
         r"errno (1|13)\].{0,60}: " + _LOCAL_PATH, Cause.ENVIRONMENT, MOVE, ONCE, ERRNO),
    Rule("access", "a file that the process may not open or change",
         r"permissionerror: \[errno (1|13)\](?![^\n]*: b?['\"](/proc|/sys|/dev))|" + _errno("12[6-9]")
         + r"|nccl warn call to \w+ failed : permission denied|(bind|listen)\b[^\n]{0,60}permission denied"
         r"|\bssh exited with exit code|permission denied \((publickey|password|keyboard|gssapi)"
         r"|host key verification failed"
         + r"|key has (expired|been revoked)|required key not available"
         r"|(permission denied|operation not permitted)[.\s]*$",
         Cause.ENVIRONMENT, MOVE, ONCE, ERRNO),
    Rule("mount-gone", "a mount that is gone",
         r"errno (6|19|40|70|71|103|10[78]|121)\][^\n]*: b?['\"]/|mount point.{0,40}(gone|not mounted"
         r"|does not exist)"
         r"|(remote i/o error|transport endpoint is not connected"
         r"|transport endpoint shutdown|no such device): ['\"]?/",
         Cause.STORAGE, EXCLUDE, WAIT, ERRNO),
    Rule("quota", "storage of which the user's share is used up",
         r"quota ?exceeded|exceeded[^\n]{0,20} quota|" + _errno("122"), Cause.STORAGE, MOVE, ONCE, ERRNO),
    Rule("read-only-here", "a directory at work that may not be written, as in a container",
         r"\[errno 30\] read-only file system: b?['\"][^/'\"]", Cause.STORAGE, MOVE, ONCE, ERRNO),
    Rule("storage-full", "storage that is full or read-only",
         r"^(\S+: )?\[errno (28|30)\](?![^\n]*inotify)|no space left on device|storagefull"
         r"|mdb_map_full|"
         + _errno("28|30") + r"(?![^\n]*inotify)"
         r"|database or disk is full|readonly database"
         r"|(oserror|checkpoint\w*|error).{0,200}read-only file system|['\"]: read-only file system\s*$",
         Cause.STORAGE, MOVE, ONCE, ERRNO),
    Rule("damaged-file", "a file whose content is damaged",
         r"checksum (does not match|mismatch|fail)|(file|archive|data|record|checkpoint|shard|image)\w*[^\n]{0,20}"
         r" corrupt|corrupt(ed)? (file|archive|data|record|checkpoint|image|jpeg)|datalosserror"
         r"|truncated (file|record|parquet)"
         r"|unexpected end of (data|file)|bytes for message body|(bad|wrong) magic|parquet magic bytes"
         r"|file signature not found|invalid load key|pickle data was truncated|ran out of input|badzipfile"
         r"|failed finding central directory|(incomplete|invalid)metadata|header ?too ?(large|small)"
         r"|deserializing header(?!: io\()|bad crc|crc (check|mismatch|error)|not a gzipped file|zlib\.error"
         r"|premature end|parquet file size is|not an arrow file|deserialize thrift|mdb_corrupted"
         r"|disk image is malformed",
         Cause.STORAGE, RESTART, ONCE, "torch, safetensors, HDF5, Arrow, tar and zip readers",
         frozenset({Speaker.SERVICE})),
    Rule("storage-error", "storage that does not answer as it should",
         r"" + _errno("5|37|70|71|107|108|112|116|121|512|52[1-9]") + r"|input/output error|stale (nfs )?file handle"
         r"|errno (11|14|35|61|10[0-4]|11[0-3])\][^\n]*: b?['\"]/|(host is down|connection timed out): ['\"]?/"
         r"|database is locked"
         r"|remote i/o error|disk i/o error|medium error|unable to open database file|file read failed"
         r"|communication error on send"
         r"|^(?!\s*what\(\): +transport endpoint is not connected)[^\n]*transport endpoint (is not connected|shutdown)"
         r"|no locks available|errno (16|26|39)\][^\n]*(\.nfs|busy)"
         r"|unable to (synchronously )?(lock|open) file.{0,80}(errno = (5|11|37)|unavailable)",
         Cause.STORAGE, WAIT, WAIT, ERRNO, PEERS),
    Rule("save-failed", "a file that could not be written",
         r"pytorchstreamwriter failed|write\(\): fd \d+ failed|unexpected pos \d+|basic_ios::clear|iostream error"
         r"|enforce fail at inline_container",
         Cause.STORAGE, WAIT, WAIT, "PyTorch, zip writer"),
    Rule("storage-other", "a file that the system could not open, read or write",
         r"^oserror: \[errno (?!(9|1[26]|2[2-4]|36)\])\d+\][^\n]*: b?['\"]/"
         r"|unable to mmap[^\n]*\((?!12\))\d+\)"
         r"|^runtimeerror: file \S+ cannot be opened", Cause.STORAGE, MOVE, ONCE, ERRNO),
)  # fmt: skip

# The network between ranks: most of these are victims'.
GANG: tuple[Rule, ...] = (
    Rule("ib-completion", "an InfiniBand peer that does not answer",
         r"got completion (from peer|with error).{0,200}((status=|error )\d|vendor[ _]err)|ib(v)?_wc_(rnr_)?retry_exc"
         r"|transport retry count(er)? exceeded|\brnr\b[^\n]{0,40}exceeded",
         Cause.NETWORK, MEET, MEET, NCCL_DOCS),
    Rule("nccl-watchdog", "a collective that did not end in time",
         r"watchdog caught collective|heartbeat ?monitor|watchdog (thread )?(got stuck|terminated)"
         r"|due to processgroupnccl watchdog hang|failed or timed out"
         r"|taking the entire process down|ran for \d+ milliseconds before timing out|monitored ?barrier"
         r"|caught collective operation timeout"
         r"|hccl[^\n]{0,30}task time ?out|stream sync(hronize)? time ?out|stuck notify|last (enqueued"
         r"|completed) nccl work|timeout at (nccl|collective)"
         r"|check ?timeout at ",
         Cause.VICTIMS_ONLY, VICTIM, VICTIM, TORCH_SOURCE),
    Rule("peer-silent", "a peer that sent no sign of life in time",
         r"getting socket times out|notify register times out|barrier timed out|stopped sending heartbeats"
         r"|heartbeat timeout\. this indicates|remote rank did not send",
         Cause.VICTIMS_ONLY, VICTIM, VICTIM, "JAX, coordination service; HCCL"),
    Rule("nccl-remote", "a peer that NCCL lost",
         r"ncclremoteerror|ops function error: hccl\w+, error code is (6|9)\b"
         r"|remote process exited or there was a network error|communicator was aborted"
         r"|net/socket.{0,80}(reset|refused|timed out|closed)"
         r"|\b(socket\.(cc|h):\d+|nccl warn) [^\n]{0,40}socket|\b(nccl)?socket(start|poll|finalize|progress|init)\w*:",
         Cause.VICTIMS_ONLY, MEET, MEET, NCCL_DOCS),
    Rule("nccl-system", "a system call that failed in NCCL",
         r"ncclsystemerror|unhandled system error", Cause.VICTIMS_ONLY, MEET, MEET, NCCL_DOCS),
    Rule("nccl-cuda", "a CUDA error inside NCCL",
         r"ncclunhandledcudaerror|unhandled cuda error|peer access is not supported",
         Cause.HARDWARE, MOVE, ONCE, NCCL_DOCS),
    Rule("store-name", "a node's name that cannot be looked up, or that does not let ssh in",
         r"\Avalueerror: host not found|^ssh: (could not resolve hostname|connect to host)",
         Cause.NETWORK, WAIT, WAIT, TORCH_SOURCE),
    Rule("peer-lost", "a peer or the store that closed its connection",
         r"\A(?=[\s\S]*?" + _PLACES + r")(?=[\s\S]*?" + _LOST + r")"
         r"|\Aruntimeerror: (socket timeout|connect\(\) timed out|connection reset by peer|broken pipe"
         r"|stop_?waiting response|timed out after \d+ seconds waiting for clients)"
         r"|client socket has (timed out|failed to connect)|mpi_abort was invoked|mpi_err_\w+|fatal error in mpi_"
         r"|what\(\): +transport endpoint is not connected|\bc10d store has failed|rendezvousconnectionerror"
         r"|brokenprocesspool|timed out waiting \d+ms for (send|recv) operation to complete",
         Cause.VICTIMS_ONLY, MEET, MEET, GLOO_SOURCE),
    Rule("fabric-other", "an error of the network between nodes", PLACED, Cause.NETWORK, RESTART, ONCE,
         "MPI, UCX, libfabric"),
    Rule("nccl-internal", "an internal error of NCCL", r"ncclinternalerror"
         r"|internal error - please report this issue to",
         Cause.NETWORK, MOVE, ONCE, NCCL_DOCS),
)  # fmt: skip

# Services outside the gang: they pass.
SERVICES: tuple[Rule, ...] = (
    Rule("container", "a container that does not start",
         r"\b(pyxis|enroot[-\w]*): |spank_pyxis|^\s*fatal: +(container|while|could not open image|unable to handle)"
         r"|^\s*fatal: {3}"
         r"|oci runtime|unsquashfs|squashfuse|docker: error response",
         Cause.ENVIRONMENT, MOVE, ONCE, "enroot, pyxis, Apptainer"),
    Rule("port", "a port that is in use", r"address already in use|eaddrinuse|errno 9[89]\]"
         r"|cannot assign requested address|failed to (add port to server|bind to (address|port))"
         r"|no address added out of|failed to start the distributed runtime service"
         r"|\blisten on [^\n]{0,80}\bport\W*\d+\W* fail",
         Cause.PORT, WAIT, WAIT, ERRNO),
    Rule("offline", "a file of a hub that may not be asked",
         r"offline_?mode_?(is_?)?enabled|offline mode is enabled|outgoing traffic has been disabled",
         Cause.ENVIRONMENT, MOVE, END, "Hugging Face hub"),
    Rule("credentials", "credentials that the process does not find",
         r"unable to locate credentials|nocredentials|default credentials were not found"
         r"|api_?key (is )?not (configured|set|found)",
         Cause.ENVIRONMENT, MOVE, END, "AWS and Google Cloud SDKs; wandb"),
    Rule("certificate", "a server's certificate, or the node's clock, that is not accepted",
         r"certificate.verify.failed|certificate has expired|certificate is not yet valid|tls ca certificate bundle"
         r"|ssl certificate problem|invalid peer certificate|requesttimetooskewed|clock.?skew"
         r"|in a reasonable timeframe",
         Cause.ENVIRONMENT, MOVE, ONCE, "OpenSSL; AWS and Google Cloud SDKs"),
    Rule("refused", "a service that refuses what it was asked for",
         r"(forbidden|unauthorized|notfound|permissiondenied): 40\d |\b(400|401|403|404|410|422) (client error"
         r"|unauthorized|forbidden|not found|bad request)(?!.*rate.?limit)"
         r"|(status|returned|response|http)\W{0,3}(error|code)?\W{0,3}(400|401|403|404|422)\b(?!.*rate.?limit)"
         r"|accessdenied|invalidaccesskey|signaturedoesnotmatch|nosuch(bucket|key)|expiredtoken|tokenexpired"
         r"|authenticationfailed|clientauthentication|permission_?error\"|permissiondenied|gatedrepo|repositorynotfound"
         r"|revisionnotfound|(?<!local)entrynotfound|invalid api key|api key is invalid",
         Cause.USAGE, MOVE, ONCE, HTTP),
    Rule("service", "a service outside the gang that does not answer",
         rf"^(?!({_NO_CLIENTS})\.)[a-z_][\w.]*\.\w*({_CLIENT_ERRORS})\w*(:|$)|please try again|after \d+ retries"
         r"|\blicens(e|ing) (server|manager|checkout|problem|error|daemon)"
         r"|metadata (server|service)|metadata\.google|169\.254\.169\.254|upstream connect error|closed the connection"
         r"|too many (clients|connections)|gone away|couldn't reach|can't contact|unable to contact|commclosed"
         r"|read only replica|hugging face hub either|error reading ssh protocol|could not reach|failed to download"
         r"|error sending request|unable to fetch|rpc failed|requesterror|network_connection|http status 5\d\d"
         r"|requests\.exceptions\.jsondecodeerror|wrong_version_number|peer closed connection|urlopen error"
         r"|\(50[0234]\)$|, 50[0234]$"
         r"|\b(5\d\d|429) (server error|client error|internal server|bad gateway|service (temporarily )?unavailable"
         r"|gateway time.?out|too many requests)|too many requests|rate limit|max retries exceeded|slowdown|slow down"
         r"|reduce your request rate|read timed out|(connect|read)timeout|newconnectionerror|failed to resolve (host"
         r"|name|address|domain|['\"]?[\w-]+\.)"
         r"|name or service not known|temporary failure in name resolution|getaddrinfo|gaierror|couldn't connect to"
         r"|could not connect to|localentrynotfound|remote end closed connection|remotedisconnected|incompleteread"
         r"|(ssl|tls).{0,60}(eof|handshake)|service ?unavailable|throttling|endpointconnectionerror|requesttimeout"
         r"|connectionrefusederror|connection refused|errno (101|104|110|111|113)\]|connection aborted"
         r"|connectionreseterror"
         r"|internalerror\) when calling|bad gateway|gateway time.?out|connection (error|timed out).{0,80}(http|url)"
         r"|status[ _]code:? (5\d\d|429)|failed with\W{1,3}(408|429|5\d\d)\b|commerror|deadline_?exceeded|econnre(set"
         r"|fused)|clientconnectorerror"
         r"|serverdisconnected|connection was closed|connectionclosederror|unavailableerror|timeout was reached"
         r"|curl.{0,30}(code|error) (6|7|28|35|52|56)\b"
         r"|service is currently unavailable|network is unreachable|no route to host|could not resolve|proxyerror"
         r"|(http\w*|status|response|(?<![a-z])(code|error))\W{0,3}(code|error)?\W{0,3}(429|50[0234])\b|server ?busy"
         r"|operationtimedout"
         r"|(can't|cannot|couldn't|could not|unable to|failed to) connect to|all connection attempts failed"
         r"|^(socket\.timeout|timeouterror): .{0,20}timed out|protocolerror|chunkedencodingerror",
         Cause.SERVICE, WAIT, WAIT, HTTP, PEERS),
    Rule("service-other", "an error of the client of a service", PLACED, Cause.SERVICE, RESTART, ONCE,
         "clients of object stores, hubs and trackers"),
    Rule("timeout", "a wait that took too long, such as for a batch or a lock",
         r"dataloader timed out after|worker timed out after \d+ seconds|^timeout \(\d+:\d\d:\d\d\)!"
         r"|^subprocess\.timeoutexpired|lockexception"
         r"|^(\S+\.)?(timeouterror|brokenbarriererror|gettimeouterror)\b|\A\S+\.(timeout|empty): "
         r"|stalled (ops|ranks|tensor)"
         r"|shut ?down due to stall", Cause.HANG, RESTART, ONCE, "PyTorch, DataLoader; Python, faulthandler"),
)  # fmt: skip

# Memory and limits of the host, kills, and crashes after the end.
HOST: tuple[Rule, ...] = (
    Rule("open-files", "too many open files, processes or threads", r"errno 2[34]\]|too many open files|inotify"
         r"|necessary resources for omp thread|create new (os|native) thread|bash: fork: |threadpoolbuilderror"
         r"|items of ancdata|can't start new thread|kind: wouldblock|what\(\): +resource temporarily unavailable"
         r"|(pthread_create|fork|thread creation)[^\n]{0,60}(failed|unavailable)|errno 11\] resource temporarily",
         Cause.ENVIRONMENT, MOVE, ONCE, ERRNO),
    Rule("node-gone", "a node or a process that the scheduler or the framework found dead",
         r"\bnode failure on |(node|actor|owner)(died|crashed)error|ray\.exceptions\.raysystemerror"
         r"|workercrashederror|\b(actor|worker|node) (has )?(died|crashed|was killed)\b"
         r"|\bnode \S+ (is )?(down|not responding)\b",
         Cause.KILLED, WAIT, WAIT, "Slurm, srun(1); Ray, exceptions"),
    Rule("killed", "a process that somebody killed",
         r"signalexception: process \d+ got signal|(terminated|died|reports|exited|killed) (with|by)?( signal)?[ :<(]*"
         r"(signals\.)?sig(kill|term|hup|int)\b|killed by signal: (terminated|hangup|interrupt)"
         r"|(exit ?code|exit status|return ?code)\W{0,4}(-(1|2|9|15)|129|130|137|143)\b|cancelled at \d"
         r"|signal (1|2|9|15) \(sig\w+\) received|(received|caught|got) (a )?(signals?[ .:]*)?(15|sig(term|int|hup))\b"
         r"|^srun: error: \S+ tasks? [\d,-]+: (killed|terminated|hangup)|^(killed|terminated|hangup)$"
         r"|: line \d+: +\d+ (killed|terminated|hangup)\b",
         Cause.KILLED, WAIT, WAIT, "signal(7)"),
    Rule("interrupt", "an interrupt, by a person or by a library that could not start", r"^keyboardinterrupt\b",
         Cause.KILLED, WAIT, WAIT, "Python, KeyboardInterrupt; OpenBLAS"),
    Rule("host-memory", "too little memory of the node",
         r"^(\S+\.)?_?(array|arrow)?memoryerror\b|memory allocation of \d+ bytes failed|runtime: out of memory"
         r"|can't allocate memory"
         r"|cannot allocate memory|std::bad_alloc|"
         + _errno("12") + r""
         r"|not enough memory|oom.kill|out.of.memory (handler|killer)|out of memory: killed|low on memory"
         r"|exceeded (job|step) memory limit|unable to mmap(?![^\n]*\((?!12\))\d+\))"
         r"|dataloader (worker|process).{0,60}(killed by signal: killed|exited unexpectedly)"
         r"|^srun: error: \S+ tasks? [\d,-]+: out of memory"
         r"|unable to allocate .{1,40} for an array|objectstorefullerror",
         Cause.OOM, RESTART, ONCE, ERRNO),
    Rule("bus-error", "memory that was mapped and is not there, as /dev/shm or a disk is full, or a file was cut",
         r"\bsigbus\b|\bbus error\b|(exit ?code|exit status|return ?code)\W{0,4}(-7|135)\b", Cause.OOM, MOVE, ONCE,
         "mmap(2), signal(7)"),
    Rule("teardown", "a crash of the interpreter as it ended",
         r"at interpreter shutdown|interpreter is (shutting|finalizing)|terminate called without an active exception"
         r"|_enter_buffered_busy|finalizing \(tstate|py_finalize|(cuda|hip).{0,20}driver shutting down",
         Cause.TEARDOWN, RESTART, ONCE, "CPython, Py_FinalizeEx"),
    Rule("gpu-other", "an error of CUDA, HIP or the driver that is not known to be a bug",
         r"\b(cuda|cudart|hip|triton)( runtime| driver)? (error|failure)|\b(cuda|hip)error[a-z]|\bcuda_error_"
         r"|npu function error|acl (stream|device|call)[^\n]{0,20} failed|(level_zero backend|native api) failed"
         r"|^runtimeerror: ur error|\bnvmlerror_\w+|\bnrt_\w+ status|synstatus|\bhsa_status_error"
         r"|\bcudnn_status_(?!success|not_supported|bad_param|invalid_value|arch_mismatch)\w+",
         Cause.HARDWARE, MOVE, ONCE, ACCELERATORS),
)  # fmt: skip

_ROWS = (*DEVICES, *PROGRAM, *FAULTS, *STORAGE, *GANG, *SERVICES, *HOST)
RULES: tuple[Rule, ...] = tuple(
    replace(row, pattern=f"{row.pattern}|{WORDS[row.name]}") if row.name in WORDS else row for row in _ROWS
)
