"""More words of the rows in ``failure_texts``: error codes, classes and fixed phrases of libraries, with their sources.

Data only. The rows have the words that were met in reported failures. These are what libraries say besides, from their
sources and documentation; a row is found by either.
"""

from __future__ import annotations

from collections.abc import Mapping

WORDS: Mapping[str, str] = {
    "gpu-ecc": (
        r"uncorrectable memory error on neuron|fatal-rt-undefined-state"  # Neuron TDRV exec_request_process_errors
        r"|multi.bit.ecc error(?!s?\W{0,3}(count)?\W{0,3}0\b)|\berror code\W{0,4}(is )?507054\b"  # CANN
        # CUDA error numbers ECCUncorrectable, NvlinkUncorrectable, Contained
        r"|\b(cuda|hip)( driver| runtime)? (error|failure)[ :=#(]{1,3}(code[ :=]{1,2})?(214|220|226)\b"
        r"|npu function error: (hbm|uce|suspect mem)[^\n]{0,20} error|uncorrectable hbm memory error"
        r"|\berror code\W{0,4}(is )?50705[35]\b"  # torch_npu NPUQueue.cpp; Neuron TDRV
    ),
    "gpu-fabric": (
        r"hccs link error"  # torch_npu NPUQueue.cpp, ACL_ERROR_RT_LINK_ERROR
    ),
    "driver-mismatch": (
        r"\b(cuda|hip)( driver| runtime)? (error|failure)[ :=#(]{1,3}(code[ :=]{1,2})?(35|36|222|803|804)\b"
        r"|\bcudasuccess \(35 vs|cudaerrorstublibrary|cuda_error_stub_library"  # CUDA error numbers
        r"|requires a minimum version of aws-neuronx-dkms"  # Neuron, nrt_init
        r"|only supports nvidia drivers for"  # CUDA.jl, initialization.jl
    ),
    "device-access": (
        r'not (a )?member of "?(render|video)"? group'  # rocminfo
    ),
    "gpu-missing": (
        r"\b0 active drivers \(\["  # triton/runtime: driver.py
        r"|dcmi \w+ initialize failed|ascend kernel runtime initialization failed"  # CANN npu-smi; MindSpore
        r"|no opencl devices? (was |were )?found|platform_not_found_khr"  # OpenCL ICD; LightGBM
        # LAMMPS gpu_extra.h; GROMACS
        r"|could not find/initialize (a |the )?(specified )?accelerator|on a gpu because no gpu is"
        r"|cuda driver not functional|unable to dynamically load the `?cuda|cuda driver library (cannot be found"
        r"|\(libcuda\.so\) is not available)|error at driver init"  # CUDA.jl, Numba, DALI
        r"|cuda initialization failure with error"  # TensorRT builder
        r"|amdsmi_status_(driver_not_loaded|not_init|init_error)|rsmi_status_init_error"  # AMD SMI, ROCm SMI
        r"|no device of requested type available|xpu device count is zero|\bno (musa|maca|mlu|gcu|sdaa) (gpus?"
        r"|devices?)\b"  # SYCL, IPEX, torch_musa, CNRT
        # OpenMP offload runtimes
        r"|libgomp: target device \d+ not available|target construct while offloading is mandatory"
        # Lightning accelerator_connector.py; vLLM
        r"|since the accelerator is not available|runtimeerror: failed to infer device type"
        r"|errorincompatibledriver|vk_error_incompatible_driver|vkcreateinstance[^\n]{0,20}no drivers"
        r"|cannot load lib(nvcuvid|cuda|nvidia-encode)\b"  # Vulkan loader; ffmpeg nvcodec
        r"|\b(cuda|hip)( driver| runtime)? (error|failure)[ :=#(]{1,3}(code[ :=]{1,2})?(3|38|100)(?![\d.])"
        r"|\bcudasuccess \((38|100) vs"  # CUDA error numbers
        r"|since gpus are not available|cannot find any torch accelerator"  # Lightning 1.x; Unsloth
        r"|get gpu arch from rocminfo failed"  # aiter, chip_info.py
        r"|create device context failed, please make sure target device"  # MindSpore, device_context_manager.cc
        r"|\d+ active drivers \(\["  # triton/runtime: driver.py
    ),
    "gpu-count": (
        r"unable to proceed, no gpu resources available"  # DeepSpeed, launcher: runner.py
    ),
    "gpu-busy": (
        r"nrt_exec_nc_busy|neuron ?core(\(s\)|s)? not available - requested"  # Neuron nrt_status.h
    ),
    "foreign-process": (
        r"error in memory profiling[^\n]{0,160}other processes"  # vLLM gpu_worker.py
    ),
    "rdma-missing": (
        r'\w+:\d+: port is not active|could not find (ib )?device "?(mlx|hfi|bnxt|ib)'  # UCX ib_iface.c; MSCCL++ ib.cc
    ),
    "rdma-local": (
        r"\blocal (protection|length|qp operation|access|eec)( error)? on (mlx|bnxt|irdma|rocep|hns)"
        r"|ibv_event_device_fatal\b"  # UCX ib_mlx5_log.c; verbs
    ),
    "rdma-route": (
        r"\bep_connect failed|null value unable to create ah\b"  # NVSHMEM, ibrc.cpp
        r"|rdma_cm_event_(addr_error|route_error|unreachable|rejected|connect_error|device_removal)"
        r"|\brdma_resolve_(addr|route)\b[^\n]{0,40}(fail|error)|rdma_cm: cannot"  # librdmacm
    ),
    "fabric": (
        r"socketfinalize\w*: wrong (type|magic)"  # NCCL, socket.cc
        # NVSHMEM, init.cu and transport
        r"|\bnvshmem\S{0,120}:\d+: (non-zero status|null value)|nvshmem (initialization|setup connections) failed"
        r"|unable to run (bstrap_)?proxy on |error setting up the boo?t?strap proxies"
        r"|cannot launch hydra_bstrap_proxy"  # Intel MPI, hydra
        r"|remote jsm server is not responding|error initializing rm connection"  # IBM JSM, jsrun
        r"|\bucc {1,3}error\b|processgroupucc\.cpp:\d+\]"  # UCC, ucc_team.c; torch, ProcessGroupUCC.cpp
        r"|aborting due to error in nvshmem|nvshmem detect topo failed"  # NVSHMEM, putget.cpp and init.cu
        # Open MPI ompi/mca/pml
        r"|\bpml \w+ cannot be selected|no components were able to be opened in the \w+ framework"
    ),
    "no-interface": (
        r'at tensorpipe/\S+ "[^"\n]{0,30}address not available'  # TensorPipe, uv.h
        r"|can't find non-loopback interface|zmqerror: no such device \(addr"  # oneCCL internal_kvs.cpp; ZeroMQ
        r"|gloo/transport/\S+ [^\n]{0,80}(getaddrinfo|cannot assign requested address)"  # gloo
        r"|call to bind failed : cannot assign requested"  # NCCL, socket.cc
    ),
    "cpu-instruction": (
        r"built using \w+ instructions, which your cpu|your machine doesn't support:"  # jaxlib cpu_feature_guard.cc
        r"|does not meet the minimum requirements for use of the intel|the processor must support the intel"
        r"|operating system and the processor support intel|not built to run (in|on) your system"  # MKL
        r"|signal:? \(?4\)?( \(\d+\))?: illegal instruction|signal: illegal instruction \(4\)"
        r"|program exception - illegal instruction"  # Julia; Open MPI; Intel Fortran
        r"|cpu isa level is lower than required|64-bit code requested on a subtarget"
        r"|instruction sets? equal or newer than avx|illegal instruction +\(core"  # glibc; LLVM; IPEX; shells
        r"|\bcpu lacks (isa|vsx|float128)"  # glibc, powerpc
    ),
    "device-assert": (
        r"view bounds error of view|\bggml_assert\(|\bnrt_exec_oob\b"  # Kokkos; ggml; Neuron
        r"|nrt_exec_completed_with_num_err"  # Neuron nrt_status.h
        r"|\b(cuda|hip)_?error_?assert\b"  # CUDA, HIP error names
    ),
    "no-kernel": (
        r"compute capability( of)?( at least)? [\d.]+ (or higher|or above|and above)"
        r"|compute capability of at least \d"  # Transformer Engine fp8.py; vLLM cuda.py
        r"|only supports? (ampere|hopper|ada|turing|volta|blackwell)\b"  # flash-attn, hopper
        r"|arch conditional mma instruction used|but was built for sm\d"  # CUTLASS, mma_sm90; xFormers
        r"|gputoooldfortriton|too old to be supported by the triton"  # torch/_inductor: exc.py
        r"|engine plan file is (not compatible|generated on an incompatible)"  # TensorRT
        r"|rebuild this file with -gpu=|no cuda device code available"  # NVHPC OpenACC runtime
        r"|gpu library not compiled for this accelerator|running kernels compiled for compute capability"
        r"|likely mismatch of architecture"  # LAMMPS gpu_extra.h; Kokkos_Cuda_Instance.cpp
        r"|\b(cuda|hip)errorinvaliddevicefunction\b|cuda_error_invalid_image\b"  # CUDA error names
        r"|\b(cuda|hip)( driver| runtime)? (error|failure)[ :=#(]{1,3}(code[ :=]{1,2})?(98|200|209|218)\b"
        r"|\bcudasuccess \((8|48|98|209) vs"  # CUDA error numbers
        r"|capability (of )?>= ?\d|minimum capability: \d+\. current capability"
        r"|cuda capability [\d.]+ or (greater|higher|newer|above)|requires (gpus? with )?sm_?\d\d"  # vLLM
        r"|unknown cuda arch \(|device_prop(\.|->)major >= \d"  # torch cpp_extension.py; DeepEP
        r"|device does not support multicast"  # torch, CUDASymmetricMemory.cu
        r"|compute capability [\d.]+ is not supported"  # Numba, cudadrv: nvvm.py
        r"|device compute capability [\d.]+ or higher (is )?required|requires? compute capability (>=|of at least"
        r"|at least)"  # Transformer Engine pytorch: utils.py
    ),
    "cuda-usage": (
        # CUDA error strings of stream capture
        r"capture sequence|capturing (blocking )?stream|uncaptured work|unjoined work"
        r"|\b(cuda|hip)errorinvalid(value|configuration|resourcehandle|symbol|devicepointer|hostpointer"
        r"|memcpydirection|pitchvalue|context|handle)\b|\bcuda_error_invalid_(value|handle|context)\b"  # CUDA
        r"|error code 3: api usage error"  # TensorRT
    ),
    "cuda-not-built": (
        r"compile with use_cuda=1|(not|never) compiled with (gpu|cuda|rocm|hip)\b|(cuda"
        r"|gpu) tree learner was not enabled|device api (cuda|gpu|rocm) is not enabled"
        r"|environment for task type \[gpu\] not found|xformers wasn't buil[dt] with cuda support"  # MXNet
        r"|implementation for device \w+(:\d+)? not found"  # mmcv, pytorch_device_registry.hpp
        r"|unsupported device target \w+\. this process only supports"  # MindSpore, context.py
        r"|requires pytorch_c10_driver_api_supported"  # torch, CUDASymmetricMemory.cu
        r"|extension horovod\.\w+ has not been built"  # Horovod, common: util.py
    ),
    "gpu-memory": (
        r"\boom when allocating tensor|dst tensor is not initialized"  # TensorFlow, ops and eager copies
        r"|out of memory error on (gpu|xpu|npu|device)\b|out of (gpu|device|hbm) memory( trying|\. free|[:!.]*$)"
        r"|\berroroutofdevicememory"  # Paddle, AMReX, CUDA.jl allocators
        # cudaMalloc/hipMalloc/cuMemAlloc wrappers: MXNet, OneFlow, faiss, TensorRT-LLM, NVHPC
        r"|\b(cuda|hip|cumem|musa|cnrt)(?!\w*host)\w*alloc\w*[^\n]{0,80}out of memory"
        r"|\bpycuda\._driver\.memoryerror|mem_object_allocation_failure"  # PyCUDA, PyOpenCL
        r"|\bcudasuccess \(2 vs"  # Caffe, glog CHECK_EQ of cudaError_t
        # CUDA error number of cudaErrorMemoryAllocation in macros of C++ programs
        r"|\b(cuda|hip)( driver| runtime)? (error|failure)[ :=#(]{1,3}(code[ :=]{1,2})?2(?![\d.])"
        r"|device\(id:\d+\) memory isn't enough|malloc for (kernel|node)[^\n]{0,30} failed, memory isn't enough"
        r"|malloc device memory failed"  # MindSpore, runtime/device/memory_manager.cc
        r"|module:pt_devmem allocation failed|workspace allocation of size :*\s?\d+ ?failed|checkanddetectoom"  # Gaudi
        r"|failed to alloc(ate)? device memory"  # Neuron TDRV dmem_alloc; QUDA malloc.cpp
        r"|resource_exhausted: (loadexecutable|error (allocating|loading)"
        r"|ran out of memory(?! in memory space [vs]mem)|out of memory|failed to allocate)"  # PJRT
        r"|cuda error: (insufficient resources|resource allocation failed) when calling"  # cusparseGetErrorString
        r"|(hipblas|hipsparse|hipsolver|hipfft|rocfft|rocsolver)_(status_)?alloc_failed"
        r"|rocblas_status_memory_error|miopenstatusallocfailed"  # ROCm libraries' status enums
        r"|out_of_memory: (rmm|cuda) |maximum pool size exceeded"  # RMM, pool_memory_resource.hpp
        r"|no available memory for the cache blocks|less than desired gpu memory utilization"
        r"|try to increase --mem-fraction-static|larger than the (available kv cache memory"
        r"|maximum number of tokens that can be stored in kv cache)"  # vLLM worker.py, SGLang model_runner.py
        r"|failed to allocate \d+ bytes on (the gpu|device '?(cuda|gpu))"  # PhysX, Warp
        r"|unable to allocate (cuda|rocm|vulkan|sycl|musa|cann)\d* buffer"  # ggml backends
        r"|error code 2: outofmemory|cuda runtime \(out of memory\)"  # TensorRT, executionContext.cpp
        r"|failed to allocate memory for requested buffer of size \d"  # ONNX Runtime, bfc_arena.cc
        r"|insufficient memory on accelerator"  # LAMMPS, gpu_extra.h
        r"|nvjpeg_status_allocator_failure|\bcuda allocation failed"  # nvJPEG; DALI
        r"|available free mem : \d{1,2} mb"  # ROCm CLR, rocdevice.cpp callback
        r"|\bnpu function error[^\n]{0,120}error code is (207001|207018)\b|\bel0004\b"  # CANN
        r"|cudnn_status_(?!\w*host)\w*allocation_failed|magma_err_device_alloc|cannot allocate memory on (gpu"
        r"|device)|enough gpu ram to fit|failed to allocate \d+ bytes for new constant"  # cuDNN 9 status enum
        # accelerate memory.py; NVHPC OpenACC runtime
        r"|no executable batch size found|out of memory allocating \d+ bytes of device memory|total/free cuda memory"
        r"|curand_status_allocation_failed|memory not available to allocate buffer|gpu(splitand)?retryoom"
        r"|gpu outofmemory"  # cuRAND; MIOpen handlehip.cpp; spark-rapids
        # MindSpore dynamic_mem_pool.cc; CatBoost cuda_manager.cpp
        r"|\ballocate memory failed\. alloc size|out of memory!{2,} request memory size|don't have enough gpu memory"
    ),
    "nccl-usage": (
        r"nccl warn \w+ : (\w+ (argument is null|\S{0,20} ?is not a valid pointer)|invalid (root|type"
        r"|reduction operation|count) )"  # NCCL, argcheck.cc
        r"|bootstrap root ?: (mismatch in rank count|rank \d+ of \d+ ranks has already)"  # NCCL, bootstrap.cc
        r"|\bmpi_err_(truncate|rank|type|count|buffer|tag|comm|op|root|group|arg|dims|topology|request|datatype"
        r"|win|disp|locktype|assert|lastcode|keyval|info_key|info_value)\b"  # MPI standard, error classes
        r"|fatal error in (internal_|p?mpi_)\w+: (message truncated|invalid (rank|communicator|datatype|count|tag"
        r"|buffer|root|argument|group|mpi_op|mpi_request)|null \w+ pointer|buffers must not be aliased)"  # MPICH
        r"|invalid config \w+ attribute value"  # NCCL, init.cc
        r"|was called (before mpi_init|after mpi_finalize) was invoked|attempting to use an mpi routine (before"
        r"|after)|\*\*\* your mpi job will now abort"  # Open MPI, errhandler_predefined.c; MPICH
        r"|application called mpi_abort\("  # MPICH, abort.c
        r"|^p?mpi_\w+\(\d+\)\.*: (null|invalid|negative) \w|message sizes do not match across processes"
        r"|message from rank \d+ and tag \d+ truncated"  # MPICH, errnames.txt
        r"|ncclgroupend: not in a group"  # NCCL, group.cc
    ),
    "usage": (
        r"error initializing torch\.distributed using \S+ rendezvous"  # torch, rendezvous.py
        r"|unsupported nproc_per_node value"  # torch, run.py
        r"|the (port number|hostname) of the rendezvous endpoint '|the rendezvous (backend"
        r"|endpoint) '[^'\n]{0,60}' (is not registered|must)"  # torchelastic, rendezvous
        r"|there are not enough slots available in the system"
        r"|^all nodes which are allocated for this job are already filled"  # Open MPI, help-orte-rmaps-base.txt
        r"|would result in binding more|requested binding more processes than"  # Open MPI, help-orte-rmaps-base.txt
        r"|\bmatch_arg \([^)\n]{0,80}\): unrecognized argument|error parsing input array"  # MPICH, hydra args.c
        r"|\bhostfile [^\n]{0,80}unable to proceed|no slot '?\w+'? specified on host"
        r"|^valueerror: you need to (manually )?(pass in|use) `--"  # DeepSpeed runner.py; Accelerate launch.py
        r"|ray\.exceptions\.(task|actor)unschedulableerror"  # Ray, exceptions.py
        r"|barrierjob\w*checkfailed|\bspark-248(19|20)\b"  # Spark, DAGScheduler
        r"|^valueerror: (coordinator_address|number of processes|the process id of the current process) (should"
        r"|must) be defined"  # JAX, distributed.py
        r"|^srun: error: unable to (create step for job \d+|allocate resources): (requested (node config"
        r"|partition|time limit|operation)|more (processors|nodes)|invalid (generic|trackable|partition|account"
        r"|qos|node name|feature|wckey|license|constraint)|memory required|(task|node|cpu) count spec)"  # Slurm
        r"|^(srun|sbatch|salloc): (error|fatal): ([^\n]{0,120}(mutually exclusive|set by two different)"
        r"|only allocated \d+ nodes? asked for|invalid --|unable to (parse|process) )"  # Slurm, srun opt.c
        r"|^(?!\S*(ld|gcc|g\+\+|cc1\w*|nvcc|ptxas|cc|c\+\+|clang\S*|cmake|ninja|make|as|tar"
        r"|git): )[\w./-]+: (unrecognized|invalid|ambiguous|unknown) option( |:)"  # getopt(3)
        # Slurm, slurm_errno.c
        r"|^srun: error: unable to (create step for job \d+|allocate resources): (requested nodes not in"
        r"|job violates accounting|task distribution|no partition|user's group not|invalid time"
        r"|requested reservation|access denied to requested|job dependency|only batch jobs|access/permission denied)"
        r'|\bunknown option "-'  # Open MPI, PRRTE command line
        r"|\bnovalidworkererror\b"  # Dask, scheduler.py
        r"|number of rendezvous nodes( \(\d+\))? must be|the rendezvous configuration option '"
        r"|hostname '[^'\n]{1,60}' not found in hostfile|include_str and exclude_str are mutually"
        r"|^valueerror: you can only use one of `--"  # torchelastic rendezvous: api.py
        r"|you set `--n(odes|tasks|tasks-per-node)=|in your slurm (bash )?script"  # Lightning
        r"|batch job submission failed: (invalid|requested (node|part|time|oper)|more processors|node count"
        r"|job violates|no partition|user's group|access/permission)|\binvalid gres spec"
        r"|did not have enough parameters \(\d|mapping request contains an unrecognized"  # Slurm sbatch and srun
        r"|botocore\.exceptions\.(noregionerror|paramvalidationerror|invalidregionerror|unknown(service|endpoint"
        r"|signatureversion|parameter)error|validationerror|invalids3\w+error|invalidendpoint\w+error"
        r"|configparseerror|invalidconfigerror)\b"  # botocore exceptions.py: wrong parameters and configuration
        r"|^valueerror: invalid endpoint: |^valueerror: required parameter \w+ not set$"  # botocore endpoint/args
        r"|^valueerror: (builderconfig '[^'\n]+' not found\. available"
        r"|unknown split \"[^\"\n]+\"\. should be one of|config name is missing\.)"  # datasets builder.py, splits.py
        # datasets load.py, transformers dynamic_module_utils.py
        r"|pass the argument [`\']trust_remote_code=true|option [`\']?trust_remote_code=true[`\']? to"
        r"|hfvalidationerror: |repo id must (be in the form|use alphanumeric)"  # huggingface_hub utils: _validators.py
        r"|wandb\.(errors\.(errors\.)?usageerror|sdk\.lib\.config_util\.configerror): (?!(no )?api[_ ]key"
        r"|call wandb\.login)"  # wandb errors.py, config_util.py
        r"|(missingschema|invalidschema|invalidurl|unsupportedprotocol|locationparseerror|nonhttpurl\w*"
        r"|invalidurlclienterror): |^valueerror: unknown url type: "  # requests/httpx/aiohttp/urllib: malformed URL
        r"|could not parse (sqlalchemy|rfc1738) url"  # SQLAlchemy engine: url.py
        r"|runtimeerror: stream contains no samples"  # mosaicml-streaming dataset.py
        r"|zarr\.errors\.contains(array|group)(andgroup)?error: "  # zarr errors.py
        r"|didn't find section in config file"  # rclone fs/newfs.go
        r"|file system scheme '[^'\n]*' not implemented"  # TensorFlow env.cc
        r"|^valueerror: protocol not known: |\bno filesystem registered for scheme\b|no filesystem for scheme"
        r"|unrecognized filesystem type in uri"  # fsspec registry.py; Hadoop FileSystem; Arrow
        r"|\binvaliduri: |locationvalueerror: "  # pymongo, urllib3
        r"|^(\[rank\d+\]:? ?)?[\w./-]+\.py: error: (?!\[errno)"  # Python argparse
        # argparse; jsonargparse _core.py
        r"|\berror: (ambiguous option: |one of the arguments [^\n]{1,120} is required|parser key [\x22']"
        r"|key [\x22'][\w.]+[\x22'] is not expected|expected \x22subcommand\x22 to be one of|unable to load config )"
        r"|^(error: )?parser key [\x22'][^\x22'\n]+[\x22']: |^\s*validation failed: key [\x22']"
        r"|^\s*key [\x22'][\w.]+[\x22'] is not expected$"  # jsonargparse typehints.py
        r"|^argparse\.argument(type)?error: |^argumenterror: argument "  # Python argparse exceptions
        # click exceptions.py, UsageError.show
        r"|^error: (invalid value(s)?( for ['\x22]|: )|missing (argument|parameter|command|option)|no such (command"
        r"|option)\b|got unexpected extra argument|option ['\x22]?-[\w-]+['\x22]? (requires|does not take))"
        r"|^│ (no such (command|option)\b|invalid value for |missing (argument|option|command)\b"
        r"|got unexpected extra argument|argument --?[\w.:-]+: |unrecognized options?: |required options?: "
        r"|required:? -)"  # typer rich_utils.py; tyro _arguments
        r"|^error: (could not consume arg: |the function received no value for the required argument"
        r"|cannot find key: )"  # python-fire core.py
        r"|\bflags parsing error: |^(error|fatal): unknown command line flag |flag --[\w-]+=[^\n]{0,60}: (flag --"
        r"|invalid literal)"  # absl app.py; gflags
        r"|^getopt\.getopterror: |^optparse\.\w+error: |^docopt\.docoptexit"  # Python getopt, optparse; docopt
        r"|^pass --helpshort or --helpfull to see help|^\s{2}\S+ --help$|^type ['\x22`]\S+ (--help|-h)['\x22`] for "
        r"|^available for use\.$"  # absl app.py; python-fire; Open MPI
        # Java option parsers
        r"|joptsimple\.\w+exception|jcommander\.parameterexception|commons\.cli\.\w+exception|picocli\.\w+exception"
        r"|^[\w./-]+( [\w<>\[\].-]+){1,4}: error: (config file|argument |the following|unrecognized"
        r"|invalid (choice|value)|one of the|recipe|no such|expected|ambiguous|unknown)"  # argparse, subcommands
        # LAMMPS input.cpp, Error::all, Error::one
        r"|^error( on proc \d+)?: (illegal|unknown|unrecognized|invalid) [^\n]{0,60}\b(command|keyword|style)\b"
    ),
    "library": (
        r"configured cuda binary not found|no attribute 'c(get_managed_ptr|adam\w*_grad_\w+"
        r"|(de)?quantize_blockwise\w*)'"  # bitsandbytes, cextension.py
        # apex setup.py and optimizers; DeepSpeed builder.py
        r"|requires cuda extensions|version of cuda that does not match the version used to compile"
        r"|cudamismatchexception|cuda version [\d.]+ does not match the version torch was compiled with"
        # XLA cuda_dnn.cc; jax/_src/lib
        r"|but source was compiled with: \d|jaxlib (is )?version [\d.]+\b[^\n]{0,60}(incompatible|requires version)"
        r"|cuda wasn'?t able to be loaded|failed to open lib(nvrtc|nvvm|cud\w*)|(libnvvm"
        r"|nvvm library) cannot be found"  # ONNX Runtime; NVRTC; Numba
        r"|shared_?object_?init_?failed"  # CUDA error names
        r"|unable to load any of \{lib|cannot load symbol cudnn|unable to load cu\w+\. is it installed"
        r"|but jax was built against version"  # cuDNN 9 shim; jax_plugins version checks
        r"|couldn't load custom c\+\+ ops"  # torchvision, extension.py
        r"|could not find shared object file"  # Megatron-LM layers.py
        r"|failed to load the backend extension|unsupported_neff_version"  # torch: __init__.py autoload
        r"|mkl fatal error: cannot load|mkl_threading_layer=\w+ is incompatible"  # Intel MKL
        r"|nvvm_error_ir_version_mismatch|ir version [\d.]+ is incompatible|minor version compatibility requires"
        r"|lantern is not loaded|opengl platform library has not been loaded"  # Numba; R torch; MuJoCo
        r"|importerror: [^\n]{0,120}requires the latest version of \w+"  # transformers, bitsandbytes quantizers
        r"|makedevicefor\w+\(\): unsupported gloo device"  # torch, ProcessGroupGloo.cpp
        r"|version mismatch: the cluster was started with"  # Ray, _private: utils.py
        r"|could not load libtorchcodec|couldn't find appropriate backend to handle uri"
        r"|no audio backend is available|not compatible with this version of torchcodec"  # torchcodec, torchaudio
        r"|failed to map segment from shared object"  # ld.so dl-map-segments
        r"|is required for a normal functioning of this module, but found"  # transformers utils: versions.py
        r"|detected cuda version \([\d.]+\) mismatches"
        r"|^pytorch \([\d.]+\)\. please make sure to use the same cuda versions|\bcudamismatchexception: "
        r"|installed cuda version [\d.]+ does not match the version torch"  # torch utils: cpp_extension.py
        r"|\bmkl fatal error: (cannot|could not|error)\b|incompatible with libgomp|mkl_service_force_intel"
        r"|omp: error #15|inconsistency detected by ld\.so|^ld\.so: |^fatal: kernel too old"  # Intel MKL
        r"|dnn library initialization failed|jaxlib( is)? version \S+( is newer than|, but this version of jax)"
        r"|source was compiled with: \d"  # jaxlib, jax/_src/lib: __init__.py; XLA cuda_dnn.cc
        r"|is used but incompatible\. please install|\w+==\S+ is (used but )?incompatible"  # OpenMMLab
        r"|^notimplementederror: could not run '(torchvision|torchaudio|fbgemm|torch_sparse|torchao|vllm"
        r"|flash_attn|_c)\w*::|operator wasn't built - see|wasn't build with cuda support"
        r"|'_opnamespace' '\w+' object has no attribute"  # torch dispatcher; xformers; torch: _ops.py
        r"|\bapex was not installed with|must install apex with --cpp_ext"
        r"|custom cuda extension \w+ module is not found|(was|were) not (built|compiled|installed) with (--"
        r"|horovod_with|cuda_ext|cpp_ext)"  # apex; Megatron tensor_parallel: layers.py
        # Slurm mpi_pmix.c, plugin.c
        r"|can ?not load pmix library|couldn't load specified plugin name|couldn't find the specified plugin"
    ),
    "setup-other": (
        r"cannot find a working triton installation|torch\._inductor\.exc\.tritonmissing"  # torch/_inductor: exc.py
        r"|\be40024: failed call python func"  # CANN, TBE compiler
        r"|cufile(driveropen|handleregister)\b[^\n]{0,40}(error|fail)"  # cuFile, GPUDirect Storage
        r"|\[init\]\[env\]init env failed"  # CANN, GE/TBE init without its Python packages
        r"|no components were able to be opened in the \w+ framework|^(\[\S+\] )?pml \w+ cannot be selected"  # Open MPI
        r"|\b(mpirun|prterun|mpiexec|orterun) has detected an attempt to run as root"  # Open MPI, help-orterun.txt
        r"|launcher '\w+' not installed"  # DeepSpeed, launcher: runner.py
        r"|could not find any running ray instance"  # Ray, _private: services.py
        r"|couldn't (find|load) (the )?specified plugin name for mpi/|cannot (find mpi plugin"
        r"|create context) for mpi/|invalid mpi type '"  # Slurm, plugin.c and slurm_mpi.c
        r"|execve\(\): [^\n]{0,200}: permission denied"  # Slurm, slurmstepd task.c
        r"|ml_discover_hierarchy exited with error"  # HCOLL
        r"|launch [^\n]{0,60}failed[^\n]{0,20}: (protocol authentication error|incompatible versions"
        r"|user not found|group not found|error generating job credential|can't find an address|unable to (find"
        r"|set)|io setup|invalid mpi plugin)"  # Slurm, slurm_errno.c
        r"|hwloc_set_cpubind returned|open mpi tried to bind a new process"  # Open MPI, help-orte-odls-default.txt
        r"|selected pml \w+, but peer"  # Open MPI, pml_base_select.c
        r"|cannot connect to sharpd"  # NCCL SHARP plugin
        r"|no matching distribution found for|could not find a version that satisfies the requirement"  # pip
        r"|packagesnotfounderror|environmentnamenotfound|resolvepackagenotfound|could not find conda environment"
        r"|all discoverable environments with|e: unable to locate package"  # conda, apt
        # Open MPI help-prun.txt
        r"|\bhas detected an attempt to run as root|^file system, leaving your system in an unusable state"
        r"|\blauncher ['\x22]\w+['\x22] not installed"  # deepspeed launcher: runner.py
        r"|lmod has detected the following error|unable to locate a modulefile for|(module"
        r"|modulecmd)[^\n]{0,40}:error:\d+:|^\s*\$ module --ignore_cache load|^the following module\(s\) (are"
        r"|is) unknown"  # Lmod; Environment Modules
        r"|no (gurobi|cplex|mosek|matlab|xpress) license( found)?|^gurobipy\.gurobierror: [^\n]{0,40}licen[cs]e"
        r"|no valid (product )?licen[cs]e|failed to obtain a valid licen[cs]e"  # Gurobi, Mosek, CPLEX
        r"|oserror: \[errno 38\](?![^\n]*: b?['\x22])|function not implemented$|lacks a functioning sem_open"
        r"|^slurmstepd: error: (execve\(\): [^\n]{0,200}permission denied|couldn't chdir to)"  # errno
        r"|dataset scripts are no longer supported|library but it was not found in your environment"
        r"|you may need to restart your runtime after installation"
        r"|requires? [`'\x22]?[\w.-]+[`'\x22]? to be installed"  # datasets load.py
        r"|\bbad system call\b|\bsigsys\b"  # signal(7), seccomp(2)
        r"|cannot find main module, but|^\s+go mod init|could not find [`']cargo\.toml|module\._resolvefilename"
        r"|error: please (pip |first |try to )?install (the )?[`'\x22]?[\w-]+[`'\x22]?"  # Go
    ),
    "config": (
        # hydra _internal: config_loader_impl.py, defaults_list.py
        r"^in ['\x22][\w/.@-]+['\x22]: could not find ['\x22]|^(cannot find )?primary config( directory"
        r"| module)? ?['\x22]?[^\n]{0,60}(not found|\. check that it)|^you must specify ['\x22][\w/@.-]+['\x22], e\.g"
        r"|^(\S+: )?(mismatched input |extraneous input |no viable alternative at input "
        r"|token recognition error)[^\n]{0,80}"  # hydra overrides grammar, ANTLR
        r"|^(\S*exception: )?error (parsing override|merging override|locating target)\b"  # hydra core/override_parser
        # hydra config_loader_impl.py
        r"|could not append to config\. an item is already at"
        r"|^multiple values for [\w/.@-]+\. to override a value use|^ambiguous value for argument"
        r"|^value ['\x22][^'\x22\n]{0,80}['\x22] (of type ['\x22]\w+['\x22] )?could not be converted to (integer|float"
        r"|boolean|bytes|enum|path)|^(\S+: )?missing mandatory value: |interpolation key ['\x22][^'\x22\n]+['\x22] not"
        r" found|unsupported interpolation type "  # omegaconf nodes.py, errors
        r"|^yaml\.(scanner|parser|constructor|composer|reader|representer)\.\w+error: |^tom(l|llib|li"
        r"|lkit)[.\w]*decodeerror: |^configparser\.\w+error: |^(json5|hjson|hocon|pyhocon|jsonnet"
        r"|libconf)[.\w]*(error|exception): "  # PyYAML, tomllib, toml, configparser
        r"|^keyerror: ['\x22]non-existent config key: "  # yacs config.py, _merge_a_into_b
        r"|\bdeepspeedconfigerror: "  # deepspeed runtime: config_utils.py
        r"|(arguments|args) (are|is) not used by the hfargumentparser"  # transformers hf_argparser.py
        r"|^pydantic(_core)?[\w.]*\.validationerror: |^validationerror: \d+ validation errors? for [a-z]\w*$"
        r"|^\s{4}for further information visit https://errors\.pydantic\.dev/"
        r"|\[type=\w+, input_value=[^\n]{1,200}, input_type=\w+\]$"  # pydantic 1 and 2
        r"|the passed configuration file [`'\x22][^\n]{1,200} does not exist\. please pass an existing file to"
        r" .accelerate launch"  # accelerate commands/config: config_args.py
        r"|the number of tasks per node configured in slurm"
        r"|in your slurm bash script, but this variable is not supported"  # lightning plugins/environments: slurm.py
        r'|^valueerror: (unsupported nproc_per_node value|nnodes=\S+ is not in "min:max" format'
        r"|the rendezvous backend ['\x22][^'\x22\n]+['\x22] is not registered)"  # torch/distributed: run.py
        r"|^valueerror: hostfile is not formatted|no slot ['\x22]\S+['\x22] specified on host"
        r"|^valueerror: host ['\x22][^'\x22\n]+['\x22] not found in hostfile|hosts? (has|have) been (defined"
        r"|declared) multiple times in hostfile"  # deepspeed launcher: runner.py
        r"|hfvalidationerror: |\bdatasetnotfounderror: "  # huggingface_hub utils: _validators.py; datasets exceptions
        r"|wandb\.errors\.(errors\.|wandb_error\.)?usageerror: (?![^\n]{0,20}api.?key)"  # wandb errors
        r"|\bconfigparsingerror: "  # mmengine config: utils.py
        r"|\bparamvalidationerror: |^invalid bucket name ['\x22]"  # botocore validate.py
    ),
    "import": (
        r"\[e050\] can't find model"  # spaCy errors.py
    ),
    "script-missing": (
        # CPython Modules/main.c, initconfig.c
        r": can't find '__main__' module in |^fatal python error: (config_|pymain_|py_?(preinit|config))"
        r"|^python runtime state: (preinitialized|core initialized)"  # CPython pylifecycle.c
    ),
    "toolchain": (
        r"missingcudaexception|cuda_home does not exist|libdevice not found at|libdevice is required by this hlo"
        r"|suitable version of ptxas|failed to launch ptxas"  # DeepSpeed builder.py; XLA nvptx
        r"|(catastrophic|fatal) error: cannot open source file"  # NVRTC and EDG front ends
        r"|(cannot|can't|could not|couldn't|unable to) find (ptxas|nvcc|hipcc|nvlink)\b"  # Triton, Numba, cpp_extension
        r"|cannot find rocm device library"  # clang, hipcc
        # torch cpp_extension.py; nvcc host_config.h
        r"|(greater than the maximum|less than the minimum) required version by cuda|unsupported gnu version"
        r"|unsupported gnu version! gcc versions|#error[ -]+unsupported (gnu|clang|microsoft)|^cmake error"
        r"|configuring incomplete, errors occurred|^\s*cmake [\d.]+ or higher is required|^\s*(could not find"
        r"|no) cmake_\w+_compiler"  # CUDA crt/host_config.h; CMake
        r"|\bcppcompileerror: |cannot find a working triton installation|gputoooldfortriton"
        r"|value 'sm_\w+' is not defined for option"  # torch/_inductor: exc.py; triton
        r"|(installed )?version of (g\+\+|gcc|clang\+*) \([\d.]+\) is|no such instruction: [`']"
        r"|nvcc compilation failed|jit: compileerror|\w+ library path not found: /"  # torch cpp_extension.py
        r"|^ninja: build stopped: |llvm error: cannot select"  # ninja; LLVM SelectionDAG
    ),
    "gpu-launch": (
        r"blas \w*(gemm|gemv|scal|dot)\w* launch failed|failed to get convolution algorithm"
        r"|dnn library initialization failed"  # TensorFlow, XLA
        r"|\b(cuda|hip)( driver| runtime)? (error|failure)[ :=#(]{1,3}(code[ :=]{1,2})?719\b|\bcudasuccess \((4"
        r"|719) vs"  # CUDA error number of cudaErrorLaunchFailure
        r"|\berrordevicelost\b|vk_error_device_lost"  # Vulkan
    ),
    "gpu-fault": (
        r"accelerator device halted|core halted unexpectedly|halted unexpectedly at tag"  # libtpu, PJRT
        r"|\b(cuda|hip)( driver| runtime)? (error|failure)[ :=#(]{1,3}(code[ :=]{1,2})?(700|702|71[4-7])\b"
        r"|\bcudasuccess \((77|700|71[4-8]) vs"  # CUDA error numbers of kernel faults
        r"|\berror code\W{0,4}(is )?5070(1[568]|3[56]|4[2-59]|50)\b|aicore exception|(vector"
        r"|ai) ?core execution is abnormal|mte instruction is out of range"  # CANN
    ),
    "local-disk": (
        r"ray\.exceptions\.outofdiskerror"  # Ray, exceptions.py
        r"|low on resource: ephemeral-storage|ephemeral local storage usage exceeds"
        r"|usage of emptydir volume [^\n]{1,80} exceeds"  # kubelet eviction
    ),
    "access": (
        r"\bpidfd_(getfd|open)\b[^\n]{0,60}(not permitted|denied|not implemented)"  # torch, CUDASymmetricMemory.cu
        r"|filesystem error: [^\n]{0,120}permission denied|\[os error (1|13):"
        r"|permission_denied: error [^\n]{0,80}local file"  # libstdc++ filesystem; tensorstore os errors
        r"|detected dubious ownership in repository|--add safe\.directory"  # git safe.directory
        r"|does not appear to support flock"  # filelock _unix.py
        # Java nio, Node.js fs
        r"|java\.nio\.file\.accessdeniedexception|^(uncaught )?error: (eacces|eperm): |^\s*code: \'(eacces|eperm)\'"
        r"|mount(\.\w+)?: [^\n]{0,120}(access denied|unknown filesystem|wrong fs type|not permitted"
        r"|must be superuser)|fusermount3?: (mount failed|failed to open|user has no|option )"
        r"|fuse: (device not found|failed to open /dev/fuse|failed to exec)"  # mount(8), FUSE
    ),
    "storage-full": (
        r"not enough disk space"  # datasets builder.py; downloaders
    ),
    "damaged-file": (
        r"(crc|checksum)s? (mismatch|error|did ?n.t match|failure)|nonmatchingchecksumerror"  # datasets, streaming
        r"|forrtl: severe \((24|36|67)\)|fortran runtime error: (end of file"
        r"|unformatted file structure has been corrupted|i/o past end of record)"  # Intel Fortran, libgfortran
    ),
    "storage-error": (
        r"^(sqlite3\.|sqlite3\S*)?operationalerror: locking protocol"  # SQLite SQLITE_PROTOCOL
        r"|^error: (eio|estale|enotconn|ehostdown|eremoteio): |forrtl: severe \(39\)"  # Node.js fs
        r"|mount\.(nfs4?|lustre|ceph|cifs|beegfs|wekafs): [^\n]{0,120}(timed out|refused|no route|input/output"
        r"|not responding|is down|network is unreachable|failed)"  # mount helpers
    ),
    "save-failed": (
        r"^curl: \(23\)|rsync error: error in file i/?o"  # curl, rsync
        r"|forrtl: severe \((38|47)\)"  # Intel Fortran run-time errors
    ),
    "storage-other": (
        # Intel Fortran, libgfortran
        r"forrtl: severe \((29|30|43)\)|fortran runtime error: (cannot open file|file \S+ does not exist)"
        r"|neither locally nor on remote|check failed: [^\n]{0,80}(no such file or directory|file not found)"
        r"|instance of '(h5|highfive|netcdf)::\w*exception'"  # DVC; glog CHECK of a path; HDF5 C++
        r"|^forrtl: severe \((24|29|30|36|37|38|39)\)|^fortran runtime error: (cannot (open|write|read)"
        r"|end of (file|record)|(bad|i/o|read|write) )"  # Intel Fortran run-time errors; libgfortran
    ),
    "ib-completion": (
        r"\berror cqe occurred|\bei0013\b"  # HCCL, error codes
        r"|\bon \w+:\d+/(ib|roce) \(synd "  # UCX, ib_mlx5_log.c
    ),
    "nccl-watchdog": (
        r"\bdeepep (timeout check failed|(error:|dispatch|combine)[^\n]{0,60}\btimeout\b)"  # DeepEP
        r"|termination timeout for `"  # XLA, rendezvous.cc
        r"|\bwatchdog timeout \("  # SGLang, scheduler
    ),
    "nccl-remote": (
        r"\bproxy call to rank \d+ failed|\[(proxy )?service( thread)?[ \d]*\] (accept failed"
        r"|could not receive type|error encountered progressing)"  # NCCL, proxy.cc
    ),
    "store-name": (
        r"could not connect to some hosts via ssh|ssh was not successful for hosts"  # Horovod, launch.py
    ),
    "peer-lost": (
        r"timed out initializing process group in store based barrier"  # torch, distributed_c10d.py
        r"|^\S*error: timeout waiting for key: \S+ after \d+ ms"  # torch, FileStore.cpp and HashStore.cpp
        r"|rpc ran for more than set timeout"  # torch, RequestCallback and rpc agent
        r"|originated at tensorpipe/"  # TensorPipe, error.cc
        r"|\bmca_btl_tcp_\w+: [^\n]{0,40}failed|\bpml_\w+\.c:\d+ fatal|open mpi failed to tcp connect to a peer"
        r"|unable to complete a tcp connection"  # Open MPI, btl_tcp_frag.c, help-mpi-btl-tcp.txt
        r"|\bhydu_sock_\w+ [^\n]{0,60}(unable to connect|refused|timed out|write error|read error)"
        r"|check for firewalls!"  # MPICH, hydra sock.c and pmip.c
        r"|waiting for gcs to become|failed to connect to gcs|ray\.exceptions\.rpcerror|raylet because it is dead"
        r"|the raylet is dead"  # Ray, exceptions and core_worker
        r"|distributed\.comm\.core\.commclosederror: |timed out (trying to connect to"
        r"|during handshake while connecting to) '?(tcp|tls|ucxx?)://"  # Dask distributed, comm: core.py
        r"|getkeyvalue\(\) timed out|failed to connect to distributed jax controller"  # JAX, distributed client
        r"|\bzmq\.error\.again\b"  # pyzmq
        # Slurm, srun launch
        r"|launch [^\n]{0,60}failed[^\n]{0,20}: (communication connection failure|socket timed out on"
        r"|slurmd communication|zero bytes were transmitted|message receive failure)|timeout waiting for task launch"
        r"|\[(proxy:[\d:]{1,9}|mpiexec)@[^\]\n]{1,60}\] [^\n]{0,120}(unable to connect|getaddrinfo"
        r"|connection (refused|reset|timed out)|broken pipe)"  # MPICH, hydra
        r"|slurm_receive_msg\w*\[?[^\n]{0,60}(zero bytes|timed out|connection)"  # Slurm, slurm_protocol_api.c
        r"|\bwait timeout after \d+ms, keys: "  # torch, TCPStore.cpp
        r"|ray\.exceptions\.actorunavailableerror|failed to reconnect to scheduler|\bfetchfailed(exception|\()"
        r"|expects a different device incarnation"  # Ray; Dask client.py; Spark; TensorFlow rendezvous
        r"|lightgbmerror: (socket (recv|send) error|please check network|connecting to rank)"
        r"|xgboosterror: [^\n]{0,60}src/collective/|nixl_err_remote_disconnect"  # LightGBM linkers_socket.cpp
        # OpenSSH
        r"|client_loop: send disconnect|packet_write_wait: connection to|^connection to \S+ closed by remote host"
        r"|tcp connection timeout, \S+ is not reachable|connect to the meta server node"
        r"|register the compute graph node|timed out node list is"  # Paddle
    ),
    "container": (
        r"^bwrap: |^error: runtime \S* ?not found|cannot connect to the docker daemon|error during connect: "
        r"|unable to start container process"  # bubblewrap; docker; runc
    ),
    "port": (
        r"port `?\d+`?, but another process|\bcould not start grpc server"  # Accelerate
        # Slurm slurm_errno.c; LightGBM linkers_socket.cpp; Ray services
        r"|required ports are in use|\bbinding port \d+ failed|is trying to use a port number \d+ that is used"
        r"|\bej0003\b|failed to bind the ip port"  # HCCL, error codes
        # scripts and launchers
        r"|^\S*(error|exception|fatal)\S*:? [^\n]{0,40}\bport \d{2,5} is (already )?(in use|used|bound|taken"
        r"|occupied|not available)|\bno free ports?\b|(find|get|allocate) (a |any )?(free|unused) port"
    ),
    "credentials": (
        r"config_exception\.configexception: |configexception: (service host/port is not set|invalid kube-config)"
        r"|service (account )?token file does not exist"  # kubernetes config/
        r"|no valid credentials provided|failed to find any kerberos tgt|cannot authenticate via:? ?\[|(no"
        r"|matching) credentials? cache (file )?[^\n]{0,60}(found|exist)"
        r"|kerberos[^\n]{0,40}ticket[^\n]{0,20}expired|unable to obtain password from user"  # Java GSS/Krb5
        # azure.identity
        r"|environment variables are not fully configured\b|azure_(client|tenant)_\w+ environment variable"
        r"|^\s*\$ gcloud (auth|config) \w+"  # gcloud core/credentials: store.py, the hint at its end
        r"|the neptune client couldn't find your api token|to get started with clearml, setup"  # neptune
        r"|nocredentialprovider|no valid providers in chain|no sas token or oauth token|keyerror: '(wandb|hf"
        r"|huggingface|aws|openai|anthropic|comet|azure|gcp|google|neptune|clearml|mlflow|s3|oss|swanlab)_\w*(key"
        r"|token|secret|credentials)\w*'"  # AWS SDK for Go; azcopy; os.environ of a key
        r"|provide either a connection_string|authgss\w+\(\) failed|kerberosexchangeerror"  # adlfs; requests_kerberos
        r"|profilenotfound|noregionerror|you must specify a region|partialcredentials"
        r"|service host/port is not set|invalid kube-config file|credentialsnotfound|no aws_?access_?key"
        r"|could not find (valid )?credentials"  # botocore exceptions.py; kubernetes config
    ),
    "certificate": (
        r"(invalid|expired|revoked|replayed) job credential|(job|authentication) credential (expired|revoked"
        r"|replayed)|\bmunge (encode|decode) failed"  # Slurm, slurm_errno.c; MUNGE
        r"|\[ssl: (tlsv\d*_|sslv3_)?(alert_|no_protocols|unsupported_protocol|no_ciphers|dh_key_too_small"
        r"|ca_md_too_weak|ee_key_too_small|unsafe_legacy\w+|\w*version\b)|\[(ssl: tlsv\d\w*_alert_(?!internal)\w+"
        r"|x509: )"  # OpenSSL reasons, ssl.SSLError
        # Python ssl, load_verify_locations
        r"|no such file or directory: '[^'\n]*(ca-bundle|ca-certificates|cacert|/certs?/)[^'\n]*\.(crt|pem)'"
        r"|sslerror: \[ssl\] |\bpem lib\b"  # OpenSSL, load_cert_chain
    ),
    "refused": (
        r"does not have [\w.]{3,60}\.[\w.]+ access|does not have permission to access"  # Google Cloud Storage JSON API
        r"|^valueerror: (invalid user token|api key must (be \d+ characters|have \d+\+? characters))"
        r"|invalidapi(key|token)\b|invalid_?api_?token|api[ _]key is invalid|error api key"  # huggingface_hub
        # neptune exceptions.py
        r"|(neptune\S*|comet_ml\S*)(projectnotfound|notfound|unauthorized|forbidden|modelnotfound)\w*"
        # mlflow protos/databricks.proto ErrorCode
        r"|mlflow\.exceptions\.\w+: (resource_does_not_exist|resource_already_exists|invalid_parameter_value"
        r"|permission_denied|unauthenticated|bad_request|feature_disabled|endpoint_not_found|changing param values)"
        r"|datasetnotfounderror: |datasets\.exceptions\.datasetnotfound"  # datasets exceptions.py
        # transformers *_utils.py from_pretrained
        r"|^oserror: (?!we couldn't connect)can't load (the )?(tokenizer|model|configuration|config"
        r"|feature extractor|image processor|processor|video processor)\b[^\n]{0,30} (of|for|from) '"
        r"|^(fatal|remote): (authentication failed for|could not read (username|password) for"
        r"|repository [^\n]{1,120} not found|invalid username or )|remote branch \S+ not found in upstream"
        r"|couldn't find remote ref "  # git
        r"|object does not exist on the server"  # git-lfs tq/
        r"|^(--)?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(--)? error (40\d|410|416): "  # GNU wget
        r"|^commandexception: (no urls matched|one or more urls)|one or more urls matched no objects"
        r"|^(accessdenied|badrequest|notfound)exception: 40\d"  # gsutil exception.py
        r"|error: \((1044|1045|1049|1130|1142|1227|1698), ['\\x22]"  # MySQL server error reference
        r"|no pg_hba\.conf entry for|^psycopg\S*error: [^\n]{0,200}fatal:  (role"
        r"|database) [\x22\'][^\n]{1,60} does not exist"  # PostgreSQL auth.c, postinit.c
        r"|kafkaerror\{code=(unknown_topic\w*|\w+_authorization_failed|sasl_\w+|_authentication|_unknown_topic"
        r"|_unknown_partition|unsupported_\w+)"  # librdkafka rdkafka.h, confluent-kafka
        r"|^redis\.exceptions\.responseerror: (wrongtype|err |noperm|wrongpass|noauth|noscript|execabort)"
        r"|^redis\.exceptions\.(nopermission|noscript|datae|outofrange)\w*"  # redis error prefixes
        r"|^tritonclient\S*: \[(statuscode\.(not_found|invalid_argument|unauthenticated|permission_denied"
        r"|unimplemented)|40\d)\]"  # Triton client
        # gRPC status codes
        r"|status(code)?( ?= ?|\.)+(statuscode\.)?(unauthenticated|permission_denied|unimplemented)\b"
        r"|password authentication failed|invalidpassworderror|incorrect username or password"
        r"|invalid username[ /-](or )?password"  # PostgreSQL, asyncpg, snowflake
        r"|aws error (access_denied|no_such_\w+|invalid_\w+|resource_not_found|unrecognized_client|signature\w*"
        r"|missing_\w+|\w+ \(http status 40[0134]\))|google::cloud::status\((permission_denied|not_found"
        r"|unauthenticated|invalid_argument)"  # Arrow filesystem/s3_internal.h, gcsfs.cc
        # s3fs errors.py, S3 and Azure messages; tensorstore
        r"|^permissionerror: (forbidden|access denied|invalid access key|the (aws access key|request signature))"
        r'|the specified (bucket|container|key|blob) does not exist|permission_denied: error [^\n]{0,60}"(gs|s3)://'
        r"|^\s+\d: (forbidden|access ?denied|unauthorized)\b|^ftplib\.error_perm: "  # mountpoint-s3
        # Hadoop FsShell, FSPermissionChecker
        r"|permission denied: user=[\w.-]+, access=|^(get|put|ls|cat|du|test|copytolocal): [`'][^'\n]+': no such file"
        r"|: no object found$|manifest (for \S+ )?(not found|unknown)\b|pull access denied for"
        r"|\bcode: 40[0134], reason"  # s5cmd; container registries; lakeFS
    ),
    "service": (
        r"^curl: \((5|6|7|16|18|28|35|52|55|56|92|95|96)\)"  # libcurl-errors(3)
        r"|\bconnecting to [^\n]{1,120}\.\.\. failed: |unable to resolve host address|^giving up\.$"  # GNU wget
        r"|^(fatal|error): (unable to access '?https?:|rpc failed|early eof|fetch-pack|the remote end hung up"
        r"|index-pack failed|expected '?packfile)|smudge (error|filter lfs failed)"
        r"|failed to fetch some objects from|over its data quota"  # git http.c, fetch-pack.c; git-lfs
        r"|\bdial (tcp|udp)[46]?[ :]|\blookup \S+ on \S+:53\b|\bserver misbehaving$|: no such host\b"  # Go net
        r"|(?<!warn )\borg\.apache\.hadoop\.(ipc|hdfs)\.\S*exception\b|blockmissingexception|standbyexception"
        r"|safemodeexception|could not obtain block: "  # Hadoop IPC and HDFS client
        r"|\bat org\.apache\.(hadoop\.(hdfs|ipc)|zookeeper|kafka|hbase)\."  # Java stack of a client, its last line
        # Java java.net
        r"|\bjava\.net\.(unknownhost|sockettimeout|connect|noroutetohost|socket)exception"
        r"|\bjava\.net\.inet\daddressimpl\.lookup|sun\.nio\.ch\.niosocketimpl\.(timed|connect|implread)"
        r"|^http\.client\.badstatusline|\b(429|5\d\d), message="  # http.client; aiohttp ClientResponseError
        # MySQL server and client error reference
        r"|error: \((1040|1053|1129|1158|1159|1160|1161|1203|1205|1213|1226|1290|1792|20[01]\d|205\d), ['\\x22]"
        # librdkafka
        r"|kafkaerror\{code=(_transport|_all_brokers_down|_timed_out|_msg_timed_out|_resolve|_max_poll_exceeded"
        r"|request_timed_out|\w*not_available|not_leader\w*|network_exception|not_enough_replicas\w*|coordinator_\w+)"
        r"|^pymemcache\.exceptions\.memcache(unexpected|server|unknown)\w*|^(aio)?pika\.exceptions\.(amqp|stream"
        r"|channel|connection)\w+|^nats\.errors\.\w+"  # pymemcache, pika, nats-py
        r"|^dns\.(resolver|exception|query)\.\w+"  # dnspython
        r"|the connection to the server \S+ was refused|^error from server \((serviceunavailable|timeout"
        r"|internalerror|servertimeout|toomanyrequests)\)"  # kubectl
        r"|gurobierror: [^\n]{0,60}licen[sc]e|licen[sc]e (has )?expired"
        r"|maximum number of users for [^\n]{1,40} reached|licensed number of users already reached"
        r"|no gurobi license|flexnet licensing error|flexlm|no such feature exists|\blmgrd\b"  # FlexNet, MATLAB, Gurobi
        r"|^serviceexception: |called `result::unwrap\(\)` on an `err` value: (reqwest|hyper|pooltimedout|tonic"
        r"|redis|sqlx|poolerror)"  # gsutil; Rust clients
        r"|rsync error: (error in (rsync protocol data stream|socket i/?o)|timeout (in data|waiting)"
        r"|unexplained error|daemon unable)"  # rsync errcode.h
        r"|\bcode: '(eai_again|enotfound|econnrefused|econnreset|etimedout|ehostunreach|enetunreach|err_socket\w+"
        r"|und_err_\w+)'|\bgetaddrinfo (eai_again|enotfound)"  # Node.js error codes
        r"|^oserror: pipe:(curl|wget|aws|gsutil|gcloud|ais|s5cmd|rclone)\b"  # webdataset gopen.py
        r"|^\S*(error|exception): (unavailable|aborted): error (reading|writing|opening|listing) \"(gs|s3|http)"
        r"|curl error\[(6|7|18|28|35|52|55|56|92)\]"  # tensorstore gcs and s3 kvstores
        r"|netcdf: (i/o failure|dap (server|failure)|authorization|file not found)[^\n]{0,20}: '?\w*https?:"
        r"|netcdf: (dap|curl) (server error|failure|error)"  # netCDF C error.c, remote data
        r"|google::cloud::status\(|curl error ?\[(6|7|18|28|35|52|55|56|92)\]=|aws error (network_connection"
        r"|slow_down|service_unavailable|internal_failure|throttling|request_timeout)"  # google-cloud-cpp Status
        r"|fail connecting to server on |no suitable servers found|failed to get reply: |instance of \'(sw::redis"
        r"|pqxx|mongocxx|sql::|cpp_redis|rdkafka|aws::)"  # pymilvus; libmongoc; redis-plus-plus, pqxx
        # exception classes of database and object store clients
        r"|^(pymilvus|pyhive|impala|thrift\.transport|clickhouse_\w+|snowflake|trino|cassandra|asyncpg|oracledb"
        r"|aerospike|qdrant_client|weaviate|swiftclient|keystoneauth1|obs|tos|aistore|minio|oss2"
        r"|ldap3)\.[\w.]*(connect|timeout|timedout|unavailable|network|operational|transport|exhaust)\w*(:|$)"
        # licence clients; AWS and HTTP error name
        r"|(acquire|obtain|check ?out|checking out|validate|renew)\w* (a |the )?licen[sc]e|\binternalservererror\b"
    ),
    "timeout": (
        r"\bapplication timed out, timeout|stalled for longer than \d+ seconds"  # MPICH hydra
        r"|didn't get all barrier sync requests"  # Spark, BarrierCoordinator
        r"|\bmegascale[^\n]{0,40}\bhang\b|program hung;"  # XLA Megascale
    ),
    "open-files": (
        r"\bterm_(process|thread)limit: job"  # LSF, bhist exit reasons
        r"|system limit for number of file watchers|emfile: too many"  # Node.js fs.watch
        r"|unable to create (new )?native thread|could not allocate file descriptors|ulimit[^\n]{0,40}(open file"
        r"|nofile|descriptors)[^\n]{0,40}(required|too low|at least)"  # OpenJDK; ulimit checks
    ),
    "node-gone": (
        r"ray\.exceptions\.(objectlost|objectfetchtimedout|objectreconstructionfailed\w*|localrayletdied)error"
        r"|local raylet died"  # Ray, exceptions.py
        r"|container released on a \*lost\* node|executor heartbeat timed out|lost contact with job shell"
        r"|pbs: job killed: node \d"  # Spark YarnAllocator; Flux; PBS MoM
        r"|required node not available|\bnode \S+ has unexpectedly rebooted"  # Slurm, slurm_errno.c
        r"|\bnode \S+ (was lost|has been lost|failed its health check)|\bnodelost\b"  # Kubernetes; agents
    ),
    "killed": (
        r"\bexited on signal (1|2|9|15) \(|killed by signal: (1|2|9|15) \(|exit string: (killed|terminated|hangup"
        r"|interrupt) \(signal|\bdied from signal (1|2|9|15)\b"  # Open MPI help-orterun.txt; MPICH hydra; HPE PALS
        r"|\bpbs: job killed: (walltime|cput|ncpus|nodes?file|by\b)|\bterm_(runlimit|cpulimit|(force_"
        r"|requeue_)?(owner|admin)|preempt\w*|window|load|deadline|chkpnt|external_signal|bucket_kill"
        r"|remove_hung_job|orphan_system|slurm|rms|zombie): job"  # PBS MoM; LSF, bhist exit reasons
        r"|\b(pod|instance|vm|node|job|machine|container|executor)\b[^\n]{0,50}\b(was|been|is being|being"
        r"|got) (preempted|reclaimed)\b|\bpod (['\x22]?[\w./-]{1,80}['\x22]? )?(was |has been )?(evicted"
        r"|deleted)\b|(received|detected)[^\n]{0,40}\b(interruption|preemption|termination) notice|(interruption"
        r"|preemption|termination) notice (was )?(received|detected)"  # Kubernetes, EC2, GCE, YARN
        r"|job\.exception [^\n]{0,20}type=(cancel|timeout|preempt)"  # Flux, job events
        r"|\bsending ctrl-c to (stepid|processes)|\ballocation \d+ has been revoked"
        r"|job/step already completing or completed|ray\.exceptions\.taskcancellederror"  # Slurm srun and salloc
        r"|preempted in order to admit|\bdisruptiontarget\b|^signal: (terminated|hangup|interrupt)$"
        r"|\bexit signals: (terminated|hangup)"  # Kubernetes; Go os/exec; ALPS aprun
        r"|fatal python error: (terminated|user defined signal)|\b(received|caught"
        r"|got) (signal \d+ \()?sigusr[12]\b|: line \d+: +\d+ user defined signal [12]\b|\bwas preempted by\b"
        r"|\b(slurm|job|walltime|wall.?clock)( time)? limit (is )?(approaching|reached|exceeded|hit)\b"  # faulthandler
        r"|\bforce terminated job\b|\bjob was (aborted|removed) by\b|\bcondor_rm\b|exited with (status|code) (129"
        r"|130|137|143)\b"  # Slurm srun; HTCondor; shells
        r"|\bterm_(runlimit|owner|preempt|cpulimit|admin|deadline|ext_signal|removehungjob|requeue_(owner|admin)"
        r"|chkpnt)\b|job killed: (walltime|cput|ncpus) \S+ exceeded|^systemexit: (129|130|137|143)$"  # LSF lsf.h
    ),
    "host-memory": (
        r"due to insufficient system memory"  # Neuron compiler, F137
        r"|failed to (cuda host alloc|malloc) \d+ bytes"  # NCCL, include/alloc.h
        r"|exceeded \d+% memory budget|exceeding (physical |virtual )?memory limits"  # Dask nanny_memory.py
        r"|pbs: job killed: [pv]{0,2}mem\b|\bterm_(memlimit|swap): job|low on resource: memory|\boomkilled\b"  # PBS MoM
        r"|exceeded memory limit \("  # Slurm, jobacct_gather
        r"|java\.lang\.outofmemoryerror(: (java heap|gc overhead|direct buffer|metaspace|requested array"
        r"|compressed class|map failed|out of swap))|insufficient memory for the java runtime"
        r"|native memory allocation \((mmap|malloc)\) failed|os::commit_memory\("  # OpenJDK
        r"|javascript heap out of memory|reached heap limit allocation failed"  # Node.js, V8
        r"|\bstep \S+ exceeded memory limit|job killed: p?v?mem \S+ exceeded limit|\bterm_memlimit\b"
        r"|\boomkilled\s*$|reason: oomkilled|exceeded its memory (limit|request)"  # Slurm, PBS, LSF, Kubernetes
        r"|exit codes of the workers are \{sigkill|^\S*terminatedworkererror: |distributed\.\w*\.?killedworker"
        r"|\.killedworker: attempted to run task"  # joblib/loky, dask
        r"|local object store is full|object store memory is full"  # Ray
        # gcc driver; Vulkan, OpenCL, Level Zero; pinned memory; MSVC/OpenVINO text of bad_alloc
        r"|killed signal terminated program|\bcc1(plus)?: out of memory|\bout[ _]of[ _]host[ _]memory|(cuda"
        r"|hip)(malloc ?host|host ?alloc|hostregister|mallocmanaged)\w*[^\n]{0,40}(fail|out of memory|cannot)"
        r"|killed due to memory pressure|\bbad allocation\s*$|^(?![^\n]*(gpu|cuda|hip"
        r"|device|vram|hbm|npu|nccl|rdma|ibv_))[^\n]*\b(could not|cannot|failed to"
        r"|unable to) m?alloc\w* \d+ ?(bytes|[kmgt]i?b)\b"  # Ray raylet
        r"|^(?!runtimeerror)\S+(error|exception): (error tokenizing data\. c error: )?out of memory\s*$"
        r"|(?<!gpu )(?<!cuda )(?<!device )memory allocation failed for "  # pandas, sqlite3; HDF5 H5MM
        r"|killed signal terminated program cc1"  # gcc driver
    ),
}
