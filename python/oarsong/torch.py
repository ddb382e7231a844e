# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over Oarsong.

    import torch.distributed as dist, oarsong.torch
    dist.init_process_group("oarsong")

The backend is in C++ and is compiled at the first import, into ~/.cache/oarsong;
that needs a C++ compiler and PyTorch's headers (Debian: libtorch-dev). Without
them there is a slower one in Python, and the import says what that lacks.
"""
import hashlib
import importlib.util
import os
import re
import secrets
import shutil
import socket
import sys
import sysconfig
import warnings

import torch
import torch.distributed as dist

from . import _torch_python
from ._lib import lib
from .group import create as _create_group
from .store import Store, StoreServer

_SOURCES = ["_torch.cc", "_torch_memory.cc"]
_HEADERS = ["_torch_checks.h", "_torch_group.h", "_torch_memory.h",
            "_torch_operands.h", "_torch_rare.h", "_torch_site.h",
            "_torch_work.h"]
_servers = []


def _headers():
    """Returns the folders with the headers of the library; none: there are no
    headers."""
    build = os.path.normpath(os.path.join(os.path.dirname(lib.path), ".."))
    tree = os.path.dirname(os.path.dirname(os.path.dirname(
        os.path.abspath(__file__))))
    for folders in ([os.path.join(build, "include")],
                    [os.path.join(build, "../include")],  # lib/x86_64-...
                    [os.path.join(tree, "include"),
                     os.path.join(build, "include")],
                    [os.path.join(build, "../../include"),
                     os.path.join(build, "include")]):
        if os.path.exists(os.path.join(folders[0], "oarsong/oarsong.h")):
            return folders
    return []


def _missing(include_paths):
    """Returns what there is not, of what compiling needs."""
    missing = [tool for tool in (os.environ.get("CXX", "c++"), "ninja")
               if shutil.which(tool) is None]
    python = sysconfig.get_path("include")
    for header, name in (("torch/csrc/distributed/c10d/Work.hpp",
                          "PyTorch's headers"),
                         ("pybind11/pybind11.h", "pybind11"),
                         ("Python.h", "Python's headers")):
        if not any(os.path.exists(os.path.join(path, header)) for path in
                   [*include_paths, python, "/usr/include"]):
            missing.append(name)
    return missing


def _warn(missing, ours):
    """Says why the backend in Python is used. missing: what compiling needs
    and is not there; ours: the folders of our headers."""
    hints = []
    if missing:
        hints.append("install what is missing (Debian: g++ ninja-build "
                     "libtorch-dev python3-dev pybind11-dev)")
    if not ours:
        missing = [*missing, f"header of Oarsong beside {lib.path}"]
        hints.append("make install puts the headers there")
    warnings.warn(
        "oarsong.torch compiles its backend once, and there is no " +
        " and no ".join(missing) + ": " + "; ".join(hints) + ". It goes on in "
        "Python, which is slower and lacks " + _torch_python.LACKS,
        RuntimeWarning, stacklevel=4)


def _module(path, name):
    """Returns the extension in a file."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _build():
    """Returns the extension; compiles it if that was not done for this source,
    this PyTorch and this library. None: it cannot be compiled here."""
    here = os.path.dirname(os.path.abspath(__file__))
    lib.load()
    key = hashlib.sha256(repr((torch.__version__, sys.version,
                               lib.path)).encode())
    for name in _SOURCES + _HEADERS:
        with open(os.path.join(here, name), "rb") as file:
            key.update(file.read())
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(cache, "oarsong", "torch-" + key.hexdigest()[:16])
    name = "oarsong_torch"
    built = os.path.join(folder, "built")
    if not os.path.exists(built):
        from torch.utils import cpp_extension  # slow, and it may print
        missing = _missing(cpp_extension.include_paths())
        include = _headers()
        if missing or not include:
            _warn(missing, include)
            return None
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
_Group = (_torch_python.PythonGroup if _extension is None else
          _extension.Group)

# ---- where the ranks meet --------------------------------------------------

_LAUNCHERS = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
              ("PMI_RANK", "PMI_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))


def _first_host():
    """Returns the host of rank 0: SLURM says the hosts of a job, as
    "node[003-7],login"; else it is this one."""
    value = os.environ.get
    if int(value("SLURM_STEP_NUM_NODES") or value("SLURM_NNODES") or 1) > 1:
        hosts = value("SLURM_STEP_NODELIST") or value("SLURM_JOB_NODELIST", "")
        return re.sub(r"\[([^],-]+)[^]]*\]", r"\1", hosts).split(",")[0]
    return "127.0.0.1"


def _take_launcher():
    """Sets what init_process_group reads for jobs of mpirun and srun, which
    say it in other words. Ranks of mpirun on several hosts need MASTER_ADDR as
    well."""
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
    os.environ.setdefault("MASTER_ADDR", _first_host())
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
    # A process that begins again may find its old store there.
    place = "oarsong/" + str(store.add(f"oarsong/times/{rank}", 1))
    store.set(f"{place}/host/{rank}", _host())
    if rank == 0:
        hosts = [store.get(f"{place}/host/{r}").decode() for r in range(size)]
        known = any(name in os.environ for name in
                    ("OARSONG_SECRET", "OARSONG_SECRET_FILE"))
        secret = None if known else secrets.token_hex(32)
        server = StoreServer(_address(hosts) + ":0", secret)
        _servers.append(server)
        store.set(f"{place}/meet", f"{server.address} {secret or 'known'}")
    address, secret = store.get(f"{place}/meet").decode().split()
    secret = None if secret == "known" else secret
    return Store.tcp(address, secret=secret), secret


def _world():
    """Returns the group of all ranks if it is one of ours and whole."""
    if not dist.is_initialized():
        return None
    world = dist.distributed_c10d._get_default_group()
    if hasattr(world, "_get_backend") and not isinstance(world, _Group):
        try:
            world = world._get_backend(torch.device("cpu"))
        except RuntimeError:  # it has none for the CPU
            return None
    return (world if isinstance(world, _Group) and not world.failed() else
            None)


def _create(options, _, name="oarsong"):
    """Makes a group: some of the ranks of the world, or one that meets through
    PyTorch's store."""
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    milliseconds = int(options.timeout.total_seconds() * 1000)
    world = _world() if ranks else None
    if world is not None and ranks == sorted(set(ranks)):
        if _extension is None:
            return _Group(world.inner.subset(ranks), milliseconds / 1000, name)
        return _Group(world.subset(ranks), rank, size, milliseconds, name)
    meeting, secret = (_meet(options.store, rank, size) if size > 1 else
                       (None, None))
    fields = {}
    if torch.cuda.is_available() and "OARSONG_BACKEND" not in os.environ:
        fields["backend"] = "hybrid"
    group = _create_group(meeting, rank, size, secret=secret,
                          timeout=milliseconds / 1000, **fields)
    if _extension is None:
        return _Group(group, milliseconds / 1000, name)
    handle = group._handle.value
    group._handle = None  # the extension destroys it
    return _Group(handle, rank, size, milliseconds, name)


if int(torch.__version__.split(".", 1)[0]) >= 2:
    dist.Backend.register_backend("oarsong", _create, extended_api=True,
                                  devices=["cpu", "cuda"][:2 if _extension
                                                          else 1])
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
    if _extension is None:
        raise RuntimeError("oarsong.torch.share_memory() needs the backend in "
                           "C++; the import has said what is missing")
    _extension.share_memory(least)


def memory_stats():
    """Returns what share_memory has done here: allocations (how often the
    library was asked for memory), used_bytes and kept_bytes."""
    if _extension is None:
        return {"allocations": 0, "used_bytes": 0, "kept_bytes": 0}
    return _extension.memory_stats()


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """A barrier that names the ranks that do not come. (PyTorch 1.13 refuses
    its own for every backend but gloo.)"""
    group = group or dist.distributed_c10d._get_default_group()
    if timeout is None:
        timeout = dist.distributed_c10d.default_pg_timeout
    group.monitored_barrier(timeout, wait_all_ranks)


def abort(reason, group=None):
    """Ends a group on all its ranks: what waits there fails with the reason."""
    group = group or dist.distributed_c10d._get_default_group()
    if not isinstance(group, _Group):
        group = group._get_backend(torch.device("cpu"))
    group.abort_with(reason)
