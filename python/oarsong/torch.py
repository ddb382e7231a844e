# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over Oarsong.

    import torch.distributed as dist, oarsong.torch
    dist.init_process_group("oarsong")

The backend is a small C++ file that is compiled at the first import, into
~/.cache/oarsong; that needs a C++ compiler and PyTorch's headers
(Debian: libtorch-dev).
"""
import hashlib
import importlib.util
import os
import secrets
import shutil
import socket
import sys

import torch
import torch.distributed as dist

from ._lib import lib
from .group import create as _create_group
from .store import Store, StoreServer

_SOURCES = ["_torch.cc", "_torch_memory.cc"]
_servers = []


def _headers():
    """Loads the library, and returns the folders with its headers."""
    lib.load()
    build = os.path.normpath(os.path.join(os.path.dirname(lib.path), ".."))
    tree = os.path.dirname(os.path.dirname(os.path.dirname(
        os.path.abspath(__file__))))
    for folders in ([os.path.join(build, "include")],
                    [os.path.join(tree, "include"),
                     os.path.join(build, "include")]):
        if os.path.exists(os.path.join(folders[0], "oarsong/oarsong.h")):
            return folders
    raise ImportError(f"the headers of {lib.path} are missing: run make "
                      "install")


def _missing(include_paths):
    """Returns what there is not, of what compiling needs."""
    header = "torch/csrc/distributed/c10d/Work.hpp"
    missing = [tool for tool in (os.environ.get("CXX", "c++"), "ninja")
               if shutil.which(tool) is None]
    if not any(os.path.exists(os.path.join(path, header))
               for path in include_paths):
        missing.append("PyTorch's headers")
    return missing


def _module(path, name):
    """Returns the extension in a file."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _build():
    """Returns the extension; compiles it if that was not done for this source,
    this PyTorch and this library."""
    here = os.path.dirname(os.path.abspath(__file__))
    include = _headers()
    key = hashlib.sha256(repr((torch.__version__, sys.version,
                               lib.path)).encode())
    for name in _SOURCES + ["_torch_memory.h"]:
        with open(os.path.join(here, name), "rb") as file:
            key.update(file.read())
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(cache, "oarsong", "torch-" + key.hexdigest()[:16])
    name = "oarsong_torch"
    built = os.path.join(folder, "built")
    if not os.path.exists(built):
        from torch.utils import cpp_extension  # slow, and it may print
        missing = _missing(cpp_extension.include_paths())
        if missing:
            raise ImportError(
                "oarsong.torch compiles its backend once, and there is no " +
                " and no ".join(missing) + ": install what is missing (Debian: "
                "g++ ninja-build libtorch-dev python3-dev). Without it, "
                "oarsong.init() and oarsong.Group work on tensors as well.")
        print("oarsong: compiling the backend of torch.distributed, once for "
              "this PyTorch: about a minute", file=sys.stderr)
        os.makedirs(folder, exist_ok=True)
        place = os.path.dirname(lib.path)
        cpp_extension.load(
            name=name, sources=[os.path.join(here, s) for s in _SOURCES],
            extra_include_paths=include,
            extra_cflags=["-O2", "-g0"], build_directory=folder,
            extra_ldflags=["-L" + place, "-l:" + os.path.basename(lib.path),
                           "-Wl,-rpath," + place], is_python_module=False)
        with open(built, "w"):
            pass
    return _module(os.path.join(folder, name + ".so"), name)


_extension = _build()

# ---- where the ranks meet --------------------------------------------------

_LAUNCHERS = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
              ("PMI_RANK", "PMI_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))


def _take_launcher():
    """Sets what init_process_group reads for jobs of mpirun and srun, which
    say it in other words. Ranks on several hosts need MASTER_ADDR as well."""
    if "RANK" in os.environ:
        return
    for rank, size in _LAUNCHERS:
        if rank in os.environ and size in os.environ:
            os.environ["RANK"] = os.environ[rank]
            os.environ["WORLD_SIZE"] = os.environ[size]
            break
    else:
        return
    job = "".join(os.environ.get(name, "") for name in
                  ("PMIX_NAMESPACE", "PMI_ID", "SLURM_JOB_ID", "SLURM_STEP_ID",
                   "OMPI_MCA_ess_base_jobid"))
    port = 12288 + int(hashlib.sha256(job.encode()).hexdigest(), 16) % 16384
    os.environ.setdefault("MASTER_ADDR", os.environ.get(
        "SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"))
    os.environ.setdefault("MASTER_PORT", str(port))


_take_launcher()


def _host():
    """Returns a text that only processes of this host have."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return socket.gethostname() + " " + file.read().strip()


def _address(hosts):
    """Returns the address of this host for ranks on these hosts."""
    if len(set(hosts)) == 1:
        return "127.0.0.1"
    master = os.environ.get("MASTER_ADDR")
    if master:
        return socket.gethostbyname(master)
    return socket.gethostbyname(socket.gethostname())


def _meet(store, rank, size):
    """Returns a store of ours that rank 0 serves, found through PyTorch's,
    and its secret: a fresh one, or None where the job has one."""
    store.set(f"oarsong/host/{rank}", _host())
    if rank == 0:
        hosts = [store.get(f"oarsong/host/{r}").decode() for r in range(size)]
        known = any(name in os.environ for name in
                    ("OARSONG_SECRET", "OARSONG_SECRET_FILE"))
        secret = None if known else secrets.token_hex(32)
        server = StoreServer(_address(hosts) + ":0", secret)
        _servers.append(server)
        store.set("oarsong/meet", f"{server.address} {secret or 'known'}")
    address, secret = store.get("oarsong/meet").decode().split()
    secret = None if secret == "known" else secret
    return Store.tcp(address, secret=secret), secret


def _world():
    """Returns the group of all ranks if it is one of ours and whole."""
    if not dist.is_initialized():
        return None
    world = dist.distributed_c10d._get_default_group()
    if hasattr(world, "_get_backend"):
        try:
            world = world._get_backend(torch.device("cpu"))
        except RuntimeError:  # it has none for the CPU
            return None
    return (world if isinstance(world, _extension.Group) and
            not world.failed() else None)


def _create(options, _, name="oarsong"):
    """Makes a group: some of the ranks of the world, or one that meets through
    PyTorch's store."""
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    milliseconds = int(options.timeout.total_seconds() * 1000)
    world = _world() if ranks else None
    if world is not None and ranks == sorted(set(ranks)):
        return _extension.Group(world.subset(ranks), rank, size, milliseconds,
                                name)
    meeting, secret = (_meet(options.store, rank, size) if size > 1 else
                       (None, None))
    fields = {}
    if torch.cuda.is_available() and "OARSONG_BACKEND" not in os.environ:
        fields["backend"] = "hybrid"
    group = _create_group(meeting, rank, size, secret=secret,
                          timeout=milliseconds / 1000, **fields)
    handle = group._handle.value
    group._handle = None  # the extension destroys it
    return _extension.Group(handle, rank, size, milliseconds, name)


if int(torch.__version__.split(".", 1)[0]) >= 2:
    dist.Backend.register_backend("oarsong", _create, extended_api=True,
                                  devices=["cpu", "cuda"])
else:
    dist.Backend.register_backend("oarsong", _create, extended_api=True)


def share_memory(least=64 << 10):
    """Puts CPU tensors of at least `least` bytes in memory that the ranks of
    this host share, from now on, so that collectives on them need no copy.
    Tensors that are there already stay where they are: call it first. 0: no
    longer. A child made by fork has copies of them; call it again there if the
    child is a rank itself."""
    if least != 0 and least < 4096:
        raise ValueError(f"tensors of {least} bytes: at least 4096")
    _extension.share_memory(least)


def memory_stats():
    """Returns what share_memory has done here: allocations (how often the
    library was asked for memory), used_bytes and kept_bytes."""
    return _extension.memory_stats()


def monitored_barrier(group=None, timeout=None):
    """A barrier that names the ranks that do not come. (PyTorch 1.13 refuses
    its own for every backend but gloo.)"""
    group = group or dist.distributed_c10d._get_default_group()
    group.monitored_barrier(
        timeout or dist.distributed_c10d.default_pg_timeout, False)
