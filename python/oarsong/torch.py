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
import socket
import sys

import torch
import torch.distributed as dist

from ._lib import lib
from .group import create as _create_group
from .store import Store, StoreServer

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


def _module(path, name):
    """Returns the extension in a file."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _build():
    """Returns the extension; compiles it if that was not done for this source,
    this PyTorch and this library."""
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                          "_torch.cc")
    include = _headers()
    with open(source, "rb") as file:
        key = hashlib.sha256(file.read() + repr(
            (torch.__version__, sys.version, lib.path)).encode()).hexdigest()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(cache, "oarsong", "torch-" + key[:16])
    name = "oarsong_torch"
    built = os.path.join(folder, "built")
    if not os.path.exists(built):
        print("oarsong: compiling the backend of torch.distributed, once for "
              "this PyTorch: about a minute", file=sys.stderr)
        from torch.utils import cpp_extension  # slow, and it may print
        os.makedirs(folder, exist_ok=True)
        place = os.path.dirname(lib.path)
        cpp_extension.load(
            name=name, sources=[source], extra_include_paths=include,
            extra_cflags=["-O2", "-g0"], build_directory=folder,
            extra_ldflags=["-L" + place, "-l:" + os.path.basename(lib.path),
                           "-Wl,-rpath," + place], is_python_module=False)
        with open(built, "w"):
            pass
    return _module(os.path.join(folder, name + ".so"), name)


_extension = _build()

# ---- where the ranks meet --------------------------------------------------


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
    """Returns a store of ours that rank 0 serves, found through PyTorch's."""
    store.set(f"oarsong/host/{rank}", _host())
    if rank == 0:
        hosts = [store.get(f"oarsong/host/{r}").decode() for r in range(size)]
        secret = os.environ.get("OARSONG_SECRET") or secrets.token_hex(32)
        os.environ["OARSONG_SECRET"] = secret
        server = StoreServer(_address(hosts) + ":0")
        _servers.append(server)
        store.set("oarsong/meet", f"{server.address} {secret}")
    address, secret = store.get("oarsong/meet").decode().split()
    os.environ.setdefault("OARSONG_SECRET", secret)
    return Store.tcp(address)


def _create(store, rank, size, timeout):
    meeting = _meet(store, rank, size) if size > 1 else None
    group = _create_group(meeting, rank, size,
                          timeout=timeout.total_seconds())
    handle = group._handle.value
    group._handle = None  # the extension destroys it
    return _extension.Group(handle, rank, size)


if int(torch.__version__.split(".", 1)[0]) >= 2:
    dist.Backend.register_backend("oarsong", _create, devices=["cpu", "cuda"])
else:
    dist.Backend.register_backend("oarsong", _create)


def monitored_barrier(group=None, timeout=None):
    """A barrier that names the ranks that do not come. (PyTorch 1.13 refuses
    its own for every backend but gloo.)"""
    group = group or dist.distributed_c10d._get_default_group()
    group.monitored_barrier(
        timeout or dist.distributed_c10d.default_pg_timeout, False)
