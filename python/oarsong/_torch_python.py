# SPDX-License-Identifier: Apache-2.0
"""The backend "oarsong" of torch.distributed in Python alone, for machines that
cannot compile the one in C++.

Operations go on by themselves here too, and failures name ranks and lines. A
call takes longer by some 100 microseconds; the rest of what is missing is in
LACKS.
"""
import collections
import os
import re

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup, Work

from . import _abi
from ._lib import Error, here
from .group import Op
from .span import Span

LACKS = ("tensors on a GPU, sparse tensors, factors before a sum, coalesced "
         "calls and share_memory()")
_BYTES = {torch.bool: torch.uint8}  # DLPack of older PyTorch has no bool


def _plain(tensor):
    """Returns the tensor as numbers that the library knows."""
    if tensor.layout != torch.strided:
        raise RuntimeError("oarsong: sparse tensors need the backend in C++: "
                           "call to_dense() first")
    if tensor.is_cuda:
        raise RuntimeError("oarsong: tensors on a GPU need the backend in C++")
    tensor = tensor.detach()
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    return tensor.view(_BYTES.get(tensor.dtype, tensor.dtype))


def _op(op, tensor):
    """Returns the library's operator for one of PyTorch's."""
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        if op == getattr(dist.ReduceOp, name):
            break
    else:
        raise RuntimeError("oarsong: this reduction needs the backend in C++")
    if tensor.is_complex() and name not in ("SUM", "AVG"):
        raise RuntimeError("oarsong: complex tensors know sum and avg")
    if tensor.dtype == torch.bool:  # any, all: as bytes
        name = {"SUM": "MAX", "PRODUCT": "MIN"}.get(name, name)
    return Op(getattr(_abi, "OAR_REDUCE_OP_" + name.replace("PRODUCT", "PROD")))


def _monitored_text(text, rank, every, seconds):
    """Adds what gloo says of a monitored barrier that failed."""
    missing = re.findall(r"[:,] ([0-9]+) \(", text)
    if rank != 0:
        return (f"{text}. Rank {rank} successfully reached monitoredBarrier, but"
                " received errors while waiting for send/recv from rank 0")
    if seconds == 0:
        return f"{text}. Rank {rank} timed out in monitoredBarrier"
    if not missing:
        return text
    named = ("Ranks " + ", ".join(missing) if every else "Rank " + missing[0])
    return (f"{text}. {named} failed to pass monitoredBarrier in "
            f"{int(seconds * 1000)} ms")


class _Operands:
    """The tensors of one call, and what is copied at its end."""

    def __init__(self):
        self.copies = []

    def read(self, tensor):
        return Span(_plain(tensor).contiguous())

    def write(self, tensor):
        tensor = _plain(tensor)
        whole = tensor.contiguous()
        if whole.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous():
            self.copies.append((tensor, whole))
        return Span(whole)

    def read_all(self, tensors):
        return Span(torch.cat([_plain(t).reshape(-1) for t in tensors]))

    def write_all(self, tensors):
        parts = [_plain(t) for t in tensors]
        whole = torch.empty(sum(t.numel() for t in parts), dtype=parts[0].dtype)
        for part, piece in zip(parts, whole.split([t.numel() for t in parts])):
            self.copies.append((part, piece.view(part.shape)))
        return Span(whole)

    def finish(self):
        with torch.no_grad():
            for to, source in self.copies:
                to.copy_(source)


def _counts(tensors):
    return [_plain(t).numel() for t in tensors]


def _splits(splits, tensor, ranks):
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % ranks:
            raise RuntimeError(f"oarsong: {rows} rows do not go into {ranks} "
                               "equal parts")
        splits = [rows // ranks] * ranks
    row = _plain(tensor).numel() // max(rows, 1)
    return [n * row for n in splits]


def _text(error, place=""):
    """Programs that wait for "Timed out", as gloo says, find it. place: the
    line of the call."""
    text = str(error)
    if isinstance(error, TimeoutError):
        text = f"Timed out ({text})"
    return text if place in text else f"{text} (in a call at {place})"


class _Work(Work):
    """An operation; waiting for it raises what it failed with."""

    def __init__(self, work, future):
        super().__init__()
        self._work, self._future = work, future

    def wait(self, timeout=None):
        seconds = timeout.total_seconds() if timeout else 0
        if seconds > 0 and not self._future.done():
            try:
                self._work.wait(seconds)
            except Error as error:
                if not self._work.done():
                    raise RuntimeError(_text(error)) from None
        self._future.wait()
        return True

    def get_future(self):
        return self._future

    def is_completed(self):
        return self._future.done()


class _AnySource:
    """A receive that says whom it is from. Only Python waits for one."""

    def __init__(self, work, operands):
        self._work, self._operands = work, operands

    def wait(self):
        self._work.wait()
        self._operands.finish()
        return True

    def is_completed(self):
        return self._work.done()

    def _source_rank(self):
        return self._work.message.source

    source_rank = _source_rank


class PythonGroup(ProcessGroup):
    """A group of ranks, as PyTorch calls one."""

    def __init__(self, group, timeout, name):
        super().__init__(group.rank, group.size)
        self.inner = group
        self._timeout = timeout
        self._name = name
        self._group_name = ""
        # C++ that waits for a work has no hold on what Python adds to it.
        self._recent = collections.deque(maxlen=64)

    def getBackendName(self):
        return self._name

    # PyTorch 2 keeps a group's name in its C++ backends, which this has none of.
    def setGroupName(self, name):
        self._group_name = name

    def getGroupName(self):
        return self._group_name

    def failed(self):
        return self.inner.fault() is not None

    def abort_with(self, reason):
        self.inner.abort(reason)

    def _post(self, call, *arguments, result=(), operands=None, opts=None,
              **fields):
        """Starts an operation, and returns a work that waits for it."""
        first = torch.futures.Future()
        seconds = getattr(opts, "timeout", None)
        seconds = seconds.total_seconds() if seconds else 0
        work = call(*arguments, wait=False,
                    timeout=seconds if seconds > 0 else self._timeout,
                    **fields)
        result = list(result)
        file, line = here()
        place = f"{os.path.basename(os.fsdecode(file))}:{line}" if file else ""

        def end(_):
            if failure:
                raise RuntimeError(_text(failure[0], place))
            if operands is not None:
                operands.finish()
            return result

        failure = []
        future = first.then(end)

        def done(error):
            if error is not None:
                failure.append(error)
            first.set_result(None)
        work.then(done)
        made = _Work(work, future)
        self._recent.append(made)
        return made

    def broadcast(self, tensors, opts):
        o = _Operands()
        return self._post(self.inner.broadcast, o.write(tensors[0]),
                          opts.rootRank, result=tensors, operands=o, opts=opts)

    def allreduce(self, tensors, opts):
        o = _Operands()
        return self._post(self.inner.all_reduce, o.write(tensors[0]),
                          _op(opts.reduceOp, tensors[0]), result=tensors,
                          operands=o, opts=opts)

    def reduce(self, tensors, opts):
        o = _Operands()
        root = opts.rootRank == self.inner.rank
        a = (o.write if root else o.read)(tensors[0])
        return self._post(self.inner.reduce, a,
                          _op(opts.reduceOp, tensors[0]), opts.rootRank,
                          result=tensors, operands=o, opts=opts)

    def allgather(self, outputs, inputs, opts=None):
        o = _Operands()
        return self._post(self.inner.all_gather, o.read(inputs[0]),
                          o.write_all(outputs[0]), _counts(outputs[0]),
                          result=outputs[0], operands=o, opts=opts)

    def _allgather_base(self, output, source, opts=None):
        o = _Operands()
        return self._post(self.inner.all_gather, o.read(source),
                          o.write(output), result=[output], operands=o,
                          opts=opts)

    all_gather_single = _allgather_base

    def gather(self, outputs, inputs, opts):
        o = _Operands()
        root = opts.rootRank == self.inner.rank
        out = o.write_all(outputs[0]) if root else None
        return self._post(self.inner.gather, o.read(inputs[0]), out,
                          opts.rootRank, result=outputs[0] if root else (),
                          operands=o, opts=opts)

    def scatter(self, outputs, inputs, opts):
        o = _Operands()
        root = opts.rootRank == self.inner.rank
        a = o.read_all(inputs[0]) if root else None
        return self._post(self.inner.scatter, o.write(outputs[0]), a,
                          opts.rootRank, result=outputs, operands=o, opts=opts)

    def reduce_scatter(self, outputs, inputs, opts):
        o = _Operands()
        return self._post(self.inner.reduce_scatter, o.read_all(inputs[0]),
                          o.write(outputs[0]), _op(opts.reduceOp, outputs[0]),
                          _counts(inputs[0]), result=outputs, operands=o,
                          opts=opts)

    def _reduce_scatter_base(self, output, source, opts):
        o = _Operands()
        return self._post(self.inner.reduce_scatter, o.read(source),
                          o.write(output), _op(opts.reduceOp, output),
                          result=[output], operands=o, opts=opts)

    reduce_scatter_single = _reduce_scatter_base

    def alltoall_base(self, output, source, output_splits, input_splits,
                      opts=None):
        o, ranks = _Operands(), self.inner.size
        return self._post(self.inner.all_to_all, o.read(source),
                          o.write(output),
                          _splits(input_splits, source, ranks),
                          _splits(output_splits, output, ranks),
                          result=[output], operands=o, opts=opts)

    all_to_all_single = alltoall_base

    def alltoall(self, outputs, inputs, opts=None):
        o = _Operands()
        return self._post(self.inner.all_to_all, o.read_all(inputs),
                          o.write_all(outputs), _counts(inputs),
                          _counts(outputs), result=outputs, operands=o,
                          opts=opts)

    def send(self, tensors, rank, tag=0):
        return self._post(self.inner.send, _Operands().read(tensors[0]), rank,
                          tag, result=tensors)

    def recv(self, tensors, rank, tag=0):
        o = _Operands()
        return self._post(self.inner.recv, o.write(tensors[0]), rank, tag,
                          result=tensors, operands=o)

    def recv_anysource(self, tensors, tag=0):
        o = _Operands()
        return _AnySource(self.inner.recv(o.write(tensors[0]), tag=tag,
                                          wait=False, timeout=self._timeout),
                          o)

    def barrier(self, opts=None):
        return self._post(self.inner.barrier, opts=opts)

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        seconds = (self._timeout if timeout is None else
                   timeout.total_seconds())
        try:  # without time it only looks
            self.inner.monitored_barrier(timeout=seconds or 0.001)
        except Error as error:
            raise RuntimeError(_monitored_text(
                _text(error), self.inner.rank, wait_all_ranks, seconds)) from None

    def _set_sequence_number_for_group(self):
        pass

    def _get_sequence_number_for_group(self):
        return 0
