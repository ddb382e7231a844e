#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ddp.c in PyTorch: DistributedDataParallel over gloo, in turns with the same
processes on their own.

ddp_torch.py RANKS mlp|gpt [OPTION=VALUE...]
    seconds=3, width=1024, alone=1, name= as of ddp.c
    view=0       gradient_as_bucket_view
    bucket=25    bucket_cap_mb
    rounds=1     measures so many times, and prints as often
    before=      a command for the shell, run before each round while the
                 processes sleep: another program, in turns with this one
Prints the train lines of ddp.c, and ddp,PEER,NAME,RANKS,PARAMETERS,kept%.
"""
import multiprocessing
import os
import socket
import subprocess
import sys
import time

BLOCK_NS, WARM_UP, LEAST_BLOCK, LEAST_BLOCKS = 200_000_000, 4, 3, 3


class Side:
    """One of the two models, and what was measured of it."""

    def __init__(self, mode, which, options, rank):
        import torch_blas  # first
        import torch
        from models_torch import build, make_optimizer
        torch.manual_seed(1234)
        self.mode = mode
        self.net, self.data, self.batch, self.sequence = build(which, options["width"])
        torch.manual_seed(99 + rank)
        _, self.data, _, _ = build(which, 8)
        if mode == "ddp":
            self.net = torch.nn.parallel.DistributedDataParallel(
                self.net, bucket_cap_mb=options["bucket"],
                gradient_as_bucket_view=bool(options["view"]))
        self.optimizer = make_optimizer(which, self.net)
        self.loss_of = torch.nn.CrossEntropyLoss()
        self.rows = []

    def step(self, i):
        x, y = self.data[i % 8]
        start = time.monotonic_ns()
        loss = self.loss_of(self.net(x), y)
        forward = time.monotonic_ns()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        backward = time.monotonic_ns()
        self.optimizer.step()
        end = time.monotonic_ns()
        self.rows.append((end - start, forward - start, backward - forward, end - backward))

    def block(self, dist, steps):
        dist.barrier()
        for i in range(steps):
            self.step(i)

    def warm_up(self, dist, torch):
        """How many steps make a block, the same on all ranks."""
        self.block(dist, WARM_UP)
        start = time.monotonic_ns()
        self.block(dist, LEAST_BLOCK)
        took = time.monotonic_ns() - start
        steps = torch.tensor([max(LEAST_BLOCK, BLOCK_NS * LEAST_BLOCK // took)])
        dist.broadcast(steps, 0)
        self.rows = []
        self.steps = int(steps.item())

    def figures(self):
        """Median and lowest tenth of the steps, medians of the phases; in us."""
        column = [sorted(c) for c in zip(*self.rows)]
        n = len(self.rows)
        return [column[0][n // 2] / 1e3, column[0][n // 10] / 1e3,
                *[c[n // 2] / 1e3 for c in column[1:]]]


def measure(sides, seconds, dist, torch):
    """Blocks of the sides in turns; rank 0's clock decides for all."""
    for side in sides:
        side.rows = []
    end, more, blocks = time.monotonic() + seconds, torch.tensor([1]), 0
    while more.item() or blocks < LEAST_BLOCKS:
        for side in sides:
            side.block(dist, side.steps)
        more[0] = int(time.monotonic() < end)
        dist.broadcast(more, 0)
        blocks += 1


def work(rank, ranks, which, options, port, queue):
    outside = dict(os.environ)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
                      USE_LIBUV="0")
    import torch
    import torch.distributed as dist
    from models_torch import peer_name
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    modes = ["ddp", "alone"] if options["alone"] else ["ddp"]
    sides = [Side(mode, which, options, rank) for mode in modes]
    for side in sides:
        side.warm_up(dist, torch)
    parameters = sum(p.numel() for p in sides[0].net.parameters())
    for i in range(options["rounds"]):
        if rank == 0 and options["before"]:
            subprocess.run(options["before"], shell=True, check=True, env=outside)
        dist.barrier()
        measure(sides, options["seconds"], dist, torch)
        queue.put((i, (rank, peer_name(), parameters,
                       [(s.mode, s.batch, s.sequence, len(s.rows), s.figures())
                        for s in sides])))
    dist.barrier()
    dist.destroy_process_group()


def report(ranks, name, got):
    _, peer, parameters, sides = got[0]
    p50 = {}
    for i, (mode, batch, sequence, steps, figures) in enumerate(sides):
        p50[mode] = max(g[3][i][4][0] for g in got)
        p10 = max(g[3][i][4][1] for g in got)
        rate = ranks * batch / p50[mode] * 1e6
        print(f"train,{peer},{name},{mode},{ranks},{batch},{steps},{p50[mode]:.1f},{p10:.1f},"
              f"{rate:.1f},{rate * sequence:.1f}," + ",".join(f"{f:.1f}" for f in figures[2:]),
              flush=True)
    kept = 100 * p50.get("alone", 0) / p50["ddp"]
    print(f"ddp,{peer},{name},{ranks},{parameters},{kept:.1f}", flush=True)


def main():
    ranks, which = int(sys.argv[1]), sys.argv[2]
    options = {"seconds": 3.0, "width": 1024, "alone": 1, "name": which, "view": 0, "bucket": 25,
               "rounds": 1, "before": ""}
    for argument in sys.argv[3:]:
        key, _, value = argument.partition("=")
        options[key] = type(options[key])(value)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=work, args=(r, ranks, which, options, port, queue))
               for r in range(ranks)]
    for w in workers:
        w.start()
    got = [[] for _ in range(options["rounds"])]
    while len(got[-1]) < ranks:
        while queue.empty():
            if any(w.exitcode for w in workers):
                for w in workers:
                    w.kill()
                sys.exit("a worker failed")
            time.sleep(0.05)
        i, figures = queue.get()
        got[i].append(figures)
        if len(got[i]) == ranks:
            report(ranks, options["name"], sorted(got[i]))
    for w in workers:
        w.join()


if __name__ == "__main__":
    main()
