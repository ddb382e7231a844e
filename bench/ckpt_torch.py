#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ckpt.c in PyTorch: the same state, saved and loaded by its own means.

ckpt_torch.py RANKS FOLDER [OPTION=VALUE...]
    rounds=1     of all methods, in turns
    methods=     torch.save,safetensors,dcp,dcp-threads: all that are there
    tiny=0       1: a state of 20 MB, to try this program out

torch.save and safetensors: rank 0 writes one file, which is then synced, as its
folder is. dcp: torch.distributed.checkpoint of all ranks over gloo, which syncs
its files; dcp-threads: with two threads that write on each rank. Every rank
loads all of the state.

Prints ckpt,PEER,save|load,METHOD,RANKS,BYTES,s,GB/s and, of loads,
cold|advised: whether all caches were dropped, or those of these files. The
seconds are medians of the rounds, each of the rank that took longest; the bytes
of a load are those of all ranks.
"""
import multiprocessing
import os
import shutil
import socket
import statistics
import sys
import time


def shapes(tiny):
    """Names and shapes of GPT-2's parameters; the head is the token table."""
    vocabulary, context, width, layers = (2000, 128, 192, 3) if tiny else (50257, 1024, 768, 12)
    yield "wte.weight", (vocabulary, width)
    yield "wpe.weight", (context, width)
    for i in range(layers):
        for name, shape in (("ln_1.weight", (width,)), ("ln_1.bias", (width,)),
                            ("attn.c_attn.weight", (width, 3 * width)),
                            ("attn.c_attn.bias", (3 * width,)),
                            ("attn.c_proj.weight", (width, width)), ("attn.c_proj.bias", (width,)),
                            ("ln_2.weight", (width,)), ("ln_2.bias", (width,)),
                            ("mlp.c_fc.weight", (width, 4 * width)), ("mlp.c_fc.bias", (4 * width,)),
                            ("mlp.c_proj.weight", (4 * width, width)), ("mlp.c_proj.bias", (width,))):
            yield f"h.{i}.{name}", shape
    yield "ln_f.weight", (width,)
    yield "ln_f.bias", (width,)


def make_state(torch, tiny):
    torch.manual_seed(1)
    state = {}
    for name, shape in shapes(tiny):
        state["model." + name] = torch.rand(shape)
        for moment in ("exp_avg", "exp_avg_sq"):
            state[f"optim.state.{name}.{moment}"] = torch.rand(shape)
    return state


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def drop_cache(folder):
    """Empties the page cache: of all files, or at least of these."""
    try:
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as f:
            f.write("1")
        return "cold"
    except OSError:
        for where, _, names in os.walk(folder):
            for name in names:
                fd = os.open(os.path.join(where, name), os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)
        return "advised"


class OneFile:
    """Rank 0 writes, and all ranks read, one file."""

    def __init__(self, write, read):
        self.write, self.read = write, read

    def save(self, state, folder, rank):
        if rank == 0:
            path = os.path.join(folder, "state")
            self.write(state, path)
            sync(path)
            sync(folder)

    def load(self, state, folder):
        for name, tensor in self.read(os.path.join(folder, "state")).items():
            state[name].copy_(tensor)


class Distributed:
    """torch.distributed.checkpoint with so many threads that write."""

    def __init__(self, dcp, threads):
        self.dcp, self.threads = dcp, threads

    def save(self, state, folder, _rank):
        self.dcp.save(state, storage_writer=self.dcp.FileSystemWriter(
            folder, thread_count=self.threads))

    def load(self, state, folder):
        self.dcp.load(state, storage_reader=self.dcp.FileSystemReader(folder))


def all_methods(torch):
    methods = {"torch.save": OneFile(torch.save, torch.load)}
    try:
        from safetensors.torch import load_file, save_file
        methods["safetensors"] = OneFile(save_file, load_file)
    except ImportError:
        pass
    try:
        import torch.distributed.checkpoint as dcp
        if hasattr(dcp, "save") and hasattr(dcp, "FileSystemWriter"):
            methods["dcp"] = Distributed(dcp, 1)
            methods["dcp-threads"] = Distributed(dcp, 2)
    except ImportError:
        pass
    return methods


def measure(method, state, folder, rank, dist):
    """Seconds of a save and of a load, and what the load found in the cache."""
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        os.sync()
    dist.barrier()
    start = time.monotonic()
    method.save(state, folder, rank)
    dist.barrier()
    saved = time.monotonic() - start
    cache = drop_cache(folder) if rank == 0 else ""
    dist.barrier()
    start = time.monotonic()
    method.load(state, folder)
    loaded = time.monotonic() - start
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    return saved, loaded, cache


def work(rank, ranks, folder, options, port, queue):
    try:
        run(rank, ranks, folder, options, port, queue)
    finally:
        queue.put(None)


def run(rank, ranks, folder, options, port, queue):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
                      USE_LIBUV="0")
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    state = make_state(torch, options["tiny"])
    size = sum(t.numel() * t.element_size() for t in state.values())
    methods = all_methods(torch)
    wanted = options["methods"].split(",") if options["methods"] else list(methods)
    for _ in range(options["rounds"]):
        for name in wanted:
            if name in methods:
                queue.put((name, torch.__version__, size,
                           *measure(methods[name], state, folder, rank, dist)))
    dist.barrier()
    dist.destroy_process_group()


def report(ranks, rows):
    """rows: of each rank, in the same order."""
    times, size, version, cache = {}, 0, "", ""
    for of_ranks in zip(*rows):
        name, version, size = of_ranks[0][:3]
        cache = "".join(r[5] for r in of_ranks)
        times.setdefault(name, []).append((max(r[3] for r in of_ranks), max(r[4] for r in of_ranks)))
    peer = "torch-" + version.split("+")[0]
    for name, pairs in times.items():
        saved, loaded = (statistics.median(p[i] for p in pairs) for i in (0, 1))
        print(f"ckpt,{peer},save,{name},{ranks},{size},{saved:.4f},{size / saved * 1e-9:.3f}")
        print(f"ckpt,{peer},load,{name},{ranks},{ranks * size},{loaded:.4f},"
              f"{ranks * size / loaded * 1e-9:.3f},{cache}", flush=True)


def main():
    ranks, folder = int(sys.argv[1]), sys.argv[2]
    options = {"rounds": 1, "methods": "", "tiny": 0}
    for argument in sys.argv[3:]:
        key, _, value = argument.partition("=")
        options[key] = type(options[key])(value)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    queues = [context.SimpleQueue() for _ in range(ranks)]
    processes = [context.Process(target=work, args=(r, ranks, folder, options, port, queues[r]))
                 for r in range(ranks)]
    for process in processes:
        process.start()
    rows = [list(iter(queue.get, None)) for queue in queues]
    for process in processes:
        process.join()
    report(ranks, rows)
    return max(process.exitcode for process in processes)


if __name__ == "__main__":
    sys.exit(main())
