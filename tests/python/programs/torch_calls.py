# SPDX-License-Identifier: Apache-2.0
"""What a program may do with works and groups, right and wrong, with two ranks:
each part prints its name when it went as it should."""
import datetime
import gc
import os
import shutil
import tempfile
import time

import torch
import torch.distributed as dist

import oarsong.torch


def seconds(count):
    return datetime.timedelta(seconds=count)


def start():
    dist.init_process_group("oarsong", timeout=seconds(120))
    return dist.get_rank()


def text_of(call):
    """Returns what a call fails with."""
    try:
        call()
    except (RuntimeError, ValueError, TypeError) as error:
        return str(error)
    raise AssertionError("it did not fail")


def expect(text, *parts):
    for part in parts:
        assert part in text, (part, text)


def futures():
    work = dist.all_reduce(torch.ones(3), async_op=True)
    twice = work.get_future().then(lambda future: future.value()[0] * 2)
    assert twice.wait().tolist() == [4, 4, 4]
    assert work.is_completed()


def a_wait_that_is_too_short():
    t = torch.zeros(3)
    if rank == 0:
        work = dist.irecv(t, 1)
        before = time.monotonic()
        expect(text_of(lambda: work.wait(seconds(0.2))), "Timed out")
        assert time.monotonic() - before < 60
        dist.barrier()
        work.wait()
        assert t.tolist() == [1, 1, 1]
    else:
        dist.barrier()
        dist.send(torch.ones(3), 0)


def a_call_that_is_too_late():
    group = dist.new_group([0, 1], timeout=seconds(1))
    if rank == 0:
        expect(text_of(lambda: dist.recv(torch.zeros(3), 1, group=group)),
               "Timed out", "torch_calls.py:")
    dist.barrier()


def a_barrier_that_says_who_is_missing():
    if rank == 0:
        text = text_of(lambda: oarsong.torch.monitored_barrier(
            timeout=seconds(0.2)))
        expect(text, "1 of 2 ranks missing: 1 (",
               "Rank 1 failed to pass monitoredBarrier in 200 ms")
    dist.barrier()
    if rank == 1:  # finds the others' messages
        oarsong.torch.monitored_barrier(timeout=seconds(20))
    dist.barrier()


def a_tensor_that_nobody_keeps():
    if rank == 0:
        dist.irecv(torch.zeros(1 << 20), 1)
        gc.collect()
        other = [torch.full((1 << 20,), 7.0) for _ in range(4)]
        dist.barrier()
        dist.recv(torch.zeros(1), 1)
        assert all((t == 7).all() for t in other)
    else:
        dist.barrier()
        dist.send(torch.ones(1 << 20), 0)
        dist.send(torch.ones(1), 0)


def a_dtype_that_does_not_exist():
    if hasattr(torch, "float8_e5m2"):
        odd = torch.ones(3).to(torch.float8_e5m2)
        name = "f8e5m2" if oarsong.torch._extension is None else "float8"
    else:
        odd, name = torch.quantize_per_tensor(torch.ones(3), 0.1, 10,
                                              torch.quint8), "quint"
    expect(text_of(lambda: dist.all_reduce(odd)).lower(), name)
    expect(text_of(lambda: dist.broadcast(torch.ones(2), 7)), "7")
    dist.barrier()


def a_factor_before_the_sum():
    """ReduceOp.PREMUL_SUM: a number, or a tensor of one element."""
    made = dist._make_nccl_premul_sum
    several = torch.__version__.startswith("1.")  # takes lists of tensors
    factor = torch.tensor([2.0 + rank])
    for op in (made(2.0 + rank), made([factor] if several else factor)):
        t = torch.ones(3)
        if oarsong.torch._extension is None:
            expect(text_of(lambda: dist.all_reduce(t, op)), "in C++")
            continue
        dist.all_reduce(t, op)
        assert t.tolist() == [5, 5, 5], t
        dist.reduce_scatter_tensor(t[:1], torch.ones(2), op)
        assert t[0] == 5, t
    if several and oarsong.torch._extension is not None:
        for wrong in ([factor, factor], [torch.ones(2)]):
            expect(text_of(lambda: dist.all_reduce(torch.ones(3),
                                                   made(wrong))), "factor")
    dist.barrier()


def a_child():
    """A group is its process's: a child is told so."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            text = text_of(lambda: dist.all_reduce(torch.ones(3)))
        except BaseException as error:  # the parent shows it
            text = repr(error)
        os.write(tell, text.encode())
        os._exit(0)
    os.close(tell)
    with open(told) as file:
        expect(file.read(), "fork")
    assert os.waitpid(pid, 0)[1] == 0
    dist.barrier()


def a_group_that_goes_with_its_work():
    """The last to hold it is the thread that finds the work done."""
    box = [dist.new_group([0, 1])]
    if rank == 1:
        time.sleep(0.2)
    work = dist.all_reduce(torch.ones(3), group=box[0], async_op=True)
    future = work.get_future()
    dist.destroy_process_group(box[0])
    del work
    after = future.then(lambda _: box.clear())
    while box:
        time.sleep(0.01)
    after.wait()
    dist.barrier()


def an_end_for_all():
    group = dist.new_group([0, 1])
    dist.barrier(group=group)
    if rank == 0:
        expect(text_of(lambda: dist.recv(torch.zeros(3), 1, group=group)),
               "rank 1", "enough of it")
    else:
        time.sleep(0.2)  # the other waits already
        oarsong.torch.abort("enough of it", group)
    dist.barrier()


def a_second_life():
    """The ranks meet in a file: PyTorch's own store of the first life may take
    connections meant for that of the second."""
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    dist.destroy_process_group()
    assert not dist.is_initialized()
    dist.init_process_group(
        "oarsong", timeout=seconds(120), rank=rank, world_size=2,
        store=dist.FileStore(os.path.join(folder[0], "store"), 2))
    t = torch.ones(3)
    dist.all_reduce(t)
    assert t.tolist() == [2, 2, 2]
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])


rank = start()
for part in (futures, a_wait_that_is_too_short, a_call_that_is_too_late,
             a_barrier_that_says_who_is_missing, a_tensor_that_nobody_keeps,
             a_dtype_that_does_not_exist, a_factor_before_the_sum, a_child,
             a_group_that_goes_with_its_work, an_end_for_all, a_second_life):
    part()
    print(f"{part.__name__}: as it should", flush=True)
dist.destroy_process_group()
