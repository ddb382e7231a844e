# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks, their collectives and messages.

Every call passes the file and line of its caller on, so that failures, reports
of stalls and autopsies name it. Calls wait unless wait=False, which returns a
Work. Common options: timeout (seconds), label (shown in errors), key (compared
over ranks), canonical, stream.
"""
import contextlib
import ctypes
import pickle
import threading
import weakref
from ctypes import byref
from sys import _getframe

from . import _abi
from ._lib import (check, error_of, files, here, last_error, lib, milliseconds,
                   options, text)
from .span import EMPTY, Span, span_of
from .work import Work, finishing

ANY_SOURCE = _abi.OAR_ANY_SOURCE
ANY_TAG = _abi.OAR_ANY_TAG


class Op:
    """How a reduction combines elements: oarsong.SUM, "max", premul_sum(0.5)."""

    __slots__ = ("c",)

    def __init__(self, kind, scalar=0.0):
        self.c = _abi.oar_reduce_op(kind, scalar)


_OPS = {name: Op(kind) for name, kind in (
    ("sum", _abi.OAR_REDUCE_OP_SUM), ("avg", _abi.OAR_REDUCE_OP_AVG),
    ("prod", _abi.OAR_REDUCE_OP_PROD), ("min", _abi.OAR_REDUCE_OP_MIN),
    ("max", _abi.OAR_REDUCE_OP_MAX), ("band", _abi.OAR_REDUCE_OP_BAND),
    ("bor", _abi.OAR_REDUCE_OP_BOR), ("bxor", _abi.OAR_REDUCE_OP_BXOR),
    ("weighted_mean", _abi.OAR_REDUCE_OP_WEIGHTED_MEAN))}
SUM, AVG, PROD, MIN, MAX = (_OPS[n] for n in ("sum", "avg", "prod", "min",
                                              "max"))
BAND, BOR, BXOR = _OPS["band"], _OPS["bor"], _OPS["bxor"]
WEIGHTED_MEAN = _OPS["weighted_mean"]


def premul_sum(factor):
    """Returns an operator: each rank's contribution times its factor, summed."""
    return Op(_abi.OAR_REDUCE_OP_PREMUL_SUM, factor)


def _op(op):
    if type(op) is Op:
        return op.c
    found = _OPS.get(op)
    if found is None:
        raise ValueError(f"there is no operator {op!r}: one of " +
                         ", ".join(_OPS) + " or premul_sum(factor)")
    return found.c


class Message:
    """What a receive has got: source, tag and bytes."""

    def __init__(self):
        self.c = options(_abi.oar_message)

    source = property(lambda self: self.c.source)
    tag = property(lambda self: self.c.tag)
    bytes = property(lambda self: self.c.bytes)



_FIELDS = {"timeout", "label", "weight", "canonical", "key", "stream",
           "synchronous", "at_most"}


def _call_options(fields, message=None):
    """Returns the options of a call, or None where there are none."""
    if not fields and message is None:
        return None
    unknown = set(fields) - _FIELDS
    if unknown:
        raise TypeError(f"there is no option {sorted(unknown)[0]!r}: one of " +
                        ", ".join(sorted(_FIELDS)))
    made = options(_abi.oar_call_opts)
    if "timeout" in fields:
        made.timeout_ms = milliseconds(fields["timeout"])
    if fields.get("label") is not None:
        made.label = text(fields["label"])
    for name in ("weight", "canonical", "key", "stream", "synchronous",
                 "at_most"):
        if fields.get(name) is not None:
            setattr(made, name, fields[name])
    if message is not None:
        made.message = ctypes.addressof(message.c)
    return made


def _counts(counts, size):
    if counts is None:
        return None
    if len(counts) != size:
        raise ValueError(f"{len(counts)} counts for {size} ranks")
    return (ctypes.c_size_t * size)(*counts)


class Group:
    """Ranks 0 to size-1. Make one by oarsong.init, split, dup or subset."""

    def __init__(self, handle):
        if type(handle) is int:  # as a function that C calls gets it
            handle = ctypes.c_void_p(handle)
        self._handle = handle
        self._works = weakref.WeakSet()
        self._orphans = []
        self._batches = threading.local()
        self._batching = False  # whether any thread ever has
        self._all_reduce = lib.unchecked("oar_all_reduce_at")
        self.rank = lib.oar_group_rank(handle)
        self.size = lib.oar_group_size(handle)

    @property
    def name(self):
        """The name that errors give it."""
        return lib.oar_group_name(self._open()).decode()

    @property
    def backend(self):
        """The name of its backend."""
        return lib.oar_group_backend(self._open()).decode()

    def _open(self):
        if self._handle is None:
            raise ValueError("this group is closed")
        return self._handle

    def close(self):
        """Leaves the group. Operations that are not done are aborted."""
        if self._handle is None:
            return
        for work in [w for w in self._works if w._handle is not None]:
            work._close()
        if getattr(finishing, "on", False):
            # A thread of the group cannot destroy it: another one does.
            threading.Thread(target=lib.oar_group_destroy,
                             args=(self._handle,)).start()
        else:
            lib.oar_group_destroy(self._handle)
        self._handle = None
        self._orphans = []

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if error is not None and self._handle is not None:
            self.abort(f"{kind.__name__}: {error}")
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None) is not None:
            self.close()

    def __repr__(self):
        if self._handle is None:
            return "<oarsong.Group, closed>"
        return f"<oarsong.Group {self.name}: rank {self.rank} of {self.size}>"

    # ---- one call ----------------------------------------------------------

    def _run(self, function, arguments, wait, fields, held, message=None):
        """Calls function(file, line, group, *arguments, options, work)."""
        file, line = here()
        opts = opts_at = None
        if fields or message is not None:
            opts = _call_options(fields, message)
            opts_at = byref(opts)
        group = self._handle or self._open()
        if self._orphans:
            self._orphans = [w for w in self._orphans if not w.done()]
        if wait:
            status = function(file, line, group, *arguments, opts_at, None)
            if status:
                raise last_error()
            if self._batching:
                batch = getattr(self._batches, "held", None)
                if batch is not None:
                    batch.append((held, message, opts))
            return message
        handle = ctypes.c_void_p()
        status = function(file, line, group, *arguments, opts_at, byref(handle))
        if status:
            raise last_error()
        return Work(self, handle, held, message)

    # ---- collectives -------------------------------------------------------

    def barrier(self, wait=True, **fields):
        """Returns when all ranks have called it."""
        return self._run(lib.oar_barrier_at, (), wait, fields, None)

    def monitored_barrier(self, **fields):
        """A barrier that names the ranks that do not come."""
        file, line = here()
        opts = _call_options(fields)
        check(lib.oar_monitored_barrier_at(
            file, line, self._open(), None if opts is None else byref(opts)))

    def broadcast(self, a, root=0, wait=True, **fields):
        """Leaves root's array in every rank's."""
        a = span_of(a)
        return self._run(lib.oar_broadcast_at, (a.c, root), wait, fields, a)

    def all_reduce(self, a, op=SUM, out=None, wait=True, **fields):
        """Leaves op over all ranks' arrays in `a`, or in `out`."""
        # What is common takes half the time of what _run does for all calls.
        if (type(a) is Span and type(op) is Op and out is None and wait and
                not fields and self._handle is not None and
                not self._orphans and not self._batching):
            frame = _getframe(1)
            file = files.get(frame.f_code.co_filename)
            if file:
                if self._all_reduce(file, frame.f_lineno, self._handle, a.c,
                                    op.c, None, None):
                    raise last_error()
                return None
        a = span_of(a)
        if out is None:
            return self._run(lib.oar_all_reduce_at, (a.c, _op(op)), wait,
                             fields, a)
        out = span_of(out)
        return self._run(lib.oar_all_reduce_into_at, (a.c, out.c, _op(op)),
                         wait, fields, (a, out))

    def reduce(self, a, op=SUM, root=0, out=None, wait=True, **fields):
        """Leaves op over all ranks' arrays in root's `out` (None: its `a`)."""
        a = span_of(a)
        if self.rank != root:
            out_c = EMPTY
        else:
            out = a if out is None else span_of(out)
            out_c = out.c
        return self._run(lib.oar_reduce_at, (a.c, out_c, _op(op), root), wait,
                         fields, (a, out))

    def gather(self, a, out=None, root=0, counts=None, wait=True, **fields):
        """Leaves every rank's array as its part of root's `out`. counts: how
        many elements each rank has, on root, where they differ."""
        a, out = span_of(a), None if out is None else span_of(out)
        out_c = EMPTY if out is None else out.c
        ragged = fields.pop("ragged", counts is not None)
        if not ragged:
            return self._run(lib.oar_gather_at, (a.c, out_c, root), wait,
                             fields, (a, out))
        return self._run(lib.oar_gather_v_at,
                         (a.c, out_c, _counts(counts, self.size), root), wait,
                         fields, (a, out))

    def scatter(self, out, a=None, root=0, counts=None, wait=True, **fields):
        """Leaves each rank's part of root's `a` in its `out`. counts: as in
        gather."""
        out, a = span_of(out), None if a is None else span_of(a)
        a_c = EMPTY if a is None else a.c
        ragged = fields.pop("ragged", counts is not None)
        if not ragged:
            return self._run(lib.oar_scatter_at, (a_c, out.c, root), wait,
                             fields, (a, out))
        return self._run(lib.oar_scatter_v_at,
                         (a_c, _counts(counts, self.size), out.c, root), wait,
                         fields, (a, out))

    def all_gather(self, a, out, counts=None, wait=True, **fields):
        """Leaves every rank's array as its part of every rank's `out`."""
        a, out = span_of(a), span_of(out)
        return self._run(lib.oar_all_gather_v_at,
                         (a.c, out.c, _counts(counts, self.size)), wait,
                         fields, (a, out))

    def reduce_scatter(self, a, out, op=SUM, counts=None, wait=True, **fields):
        """Leaves this rank's part of op over all ranks' arrays in `out`."""
        a, out = span_of(a), span_of(out)
        return self._run(lib.oar_reduce_scatter_v_at,
                         (a.c, _counts(counts, self.size), out.c, _op(op)),
                         wait, fields, (a, out))

    def all_to_all(self, a, out, counts=None, out_counts=None, wait=True,
                   **fields):
        """Leaves part r of this rank's array as part (this rank) of rank r's
        `out`."""
        a, out = span_of(a), span_of(out)
        return self._run(lib.oar_all_to_all_v_at,
                         (a.c, _counts(counts, self.size), out.c,
                          _counts(out_counts, self.size)), wait, fields,
                         (a, out))

    @contextlib.contextmanager
    def batch(self):
        """Calls inside are collected, and run as one at the end."""
        check(lib.oar_batch_begin(self._open()))
        self._batching = True
        self._batches.held = []
        try:
            yield
        finally:
            status = lib.oar_batch_end(self._open(), None)
            self._batches.held = None
        check(status)

    # ---- messages ----------------------------------------------------------

    def send(self, a, peer, tag=0, wait=True, **fields):
        """Sends an array to a rank."""
        a = span_of(a)
        return self._run(lib.oar_send_at, (a.c, peer, tag), wait, fields, a)

    def recv(self, a, peer=ANY_SOURCE, tag=0, wait=True, **fields):
        """Receives into an array; returns a Message (or a Work)."""
        a = span_of(a)
        return self._run(lib.oar_recv_at, (a.c, peer, tag), wait, fields, a,
                         Message())

    def sendrecv(self, a, to, into, source, tag=0, into_tag=None, wait=True,
                 **fields):
        """Sends `a` and receives `into`, both under way at once."""
        a, into = span_of(a), span_of(into)
        into_tag = tag if into_tag is None else into_tag
        return self._run(lib.oar_sendrecv_at,
                         (a.c, to, tag, into.c, source, into_tag), wait,
                         fields, (a, into))

    def probe(self, peer=ANY_SOURCE, tag=ANY_TAG, timeout=0):
        """Returns the Message that waits to be received, or None. A timeout
        in seconds (None: the group's) waits for one; TimeoutError."""
        file, line = here()
        message = Message()
        if timeout == 0:
            found = ctypes.c_int()
            check(lib.oar_probe_at(file, line, self._open(), peer, tag,
                                   byref(found), byref(message.c)))
            return message if found.value else None
        check(lib.oar_probe_wait_at(file, line, self._open(), peer, tag,
                                    milliseconds(timeout), byref(message.c)))
        return message

    # ---- objects: pickled, so only from ranks that are trusted -------------

    def _run_bytes(self, function, *arguments):
        file, line = here()
        check(function(file, line, self._open(), *arguments, None, None))

    def all_gather_object(self, value):
        """Returns the list of every rank's object."""
        data = pickle.dumps(value)
        all_at = ctypes.c_void_p()
        sizes = (ctypes.c_size_t * self.size)()
        self._run_bytes(lib.oar_all_gather_bytes_at, data, len(data),
                        byref(all_at), sizes)
        return _unpack(all_at, sizes)

    def gather_object(self, value, root=0):
        """Returns the list of every rank's object on root, else None."""
        data = pickle.dumps(value)
        if self.rank != root:
            self._run_bytes(lib.oar_gather_bytes_at, data, len(data), root,
                            None, None)
            return None
        all_at = ctypes.c_void_p()
        sizes = (ctypes.c_size_t * self.size)()
        self._run_bytes(lib.oar_gather_bytes_at, data, len(data), root,
                        byref(all_at), sizes)
        return _unpack(all_at, sizes)

    def broadcast_object(self, value=None, root=0):
        """Returns root's object."""
        data = ctypes.c_void_p()
        size = ctypes.c_size_t()
        if self.rank == root:
            packed = pickle.dumps(value)
            data = ctypes.cast(ctypes.c_char_p(packed), ctypes.c_void_p)
            size.value = len(packed)
        self._run_bytes(lib.oar_broadcast_bytes_at, byref(data), byref(size),
                        root)
        if self.rank == root:
            return value
        return _unpack(data, [size.value])[0]

    def scatter_object(self, values=None, root=0):
        """Returns this rank's object of root's list."""
        packed, sizes = None, None
        if self.rank == root:
            if len(values) != self.size:
                raise ValueError(f"{len(values)} objects for {self.size} ranks")
            parts = [pickle.dumps(value) for value in values]
            packed = b"".join(parts)
            sizes = (ctypes.c_size_t * self.size)(*map(len, parts))
        data = ctypes.c_void_p()
        size = ctypes.c_size_t()
        self._run_bytes(lib.oar_scatter_bytes_at, packed, sizes, root,
                        byref(data), byref(size))
        return _unpack(data, [size.value])[0]

    # ---- other groups ------------------------------------------------------

    def split(self, colour, key=0):
        """Returns the group of the ranks with this colour, ordered by key;
        None for a colour below 0."""
        file, line = here()
        made = ctypes.c_void_p()
        check(lib.oar_group_split_at(file, line, self._open(), colour, key,
                                     byref(made)))
        return Group(made) if made.value else None

    def dup(self, name=None, timeout=None, loose=False):
        """Returns a group of the same ranks. loose: messages fail alone."""
        file, line = here()
        made = ctypes.c_void_p()
        opts = options(_abi.oar_dup_opts, name=text(name), loose=int(loose),
                       timeout_ms=milliseconds(timeout))
        check(lib.oar_group_dup_with_at(file, line, self._open(), byref(opts),
                                        byref(made)))
        return Group(made)

    def subset(self, ranks):
        """Returns the group of these ranks, in ascending order; only they
        call it."""
        made = ctypes.c_void_p()
        ranks = list(ranks)
        check(lib.oar_group_subset(self._open(), len(ranks),
                                   (ctypes.c_int * len(ranks))(*ranks),
                                   byref(made)))
        return Group(made)

    def shrink(self, timeout=None, any=False):
        """Returns the group of the ranks that are left."""
        made = ctypes.c_void_p()
        opts = options(_abi.oar_shrink_opts, timeout_ms=milliseconds(timeout),
                       any=int(any))
        check(lib.oar_group_shrink(self._open(), byref(opts), byref(made)))
        return Group(made)

    def to_world(self, rank):
        """Returns the rank in the world of a rank here; -1: none."""
        return lib.oar_group_to_world(self._open(), rank)

    def from_world(self, rank):
        """Returns the rank here of a rank in the world; -1: none."""
        return lib.oar_group_from_world(self._open(), rank)

    def host(self, rank):
        """Returns the number of the host that a rank is on."""
        return lib.oar_group_host(self._open(), rank)

    # ---- faults ------------------------------------------------------------

    def abort(self, reason=None):
        """Ends the group on all ranks, with a reason."""
        check(lib.oar_group_abort(self._open(), text(reason)))

    def fault(self):
        """Returns the exception that has ended the group, or None."""
        record = _abi.oar_error()
        record.size = ctypes.sizeof(record)
        if lib.oar_group_fault(self._open(), byref(record)) == _abi.OAR_OK:
            return None
        return error_of(record)

    @contextlib.contextmanager
    def timeout_scope(self, label, timeout=float("inf")):
        """Says that this rank may be slow inside: no operation that waits for
        it runs out of time."""
        scope = ctypes.c_void_p()
        check(lib.oar_timeout_scope_begin(self._open(), text(label),
                                          milliseconds(timeout), byref(scope)))
        try:
            yield
        finally:
            lib.oar_timeout_scope_end(scope)


def _unpack(all_at, sizes):
    """Returns the objects in memory of the library's, and frees it."""
    values, at = [], all_at.value or 0
    try:
        for size in sizes:
            values.append(pickle.loads(ctypes.string_at(at, size)))
            at += size
    finally:
        lib.oar_free(all_at)
    return values


# ---- making groups ---------------------------------------------------------

_GROUP_FIELDS = {"backend", "name", "algorithm", "secret"}


def _group_options(timeout, fields):
    made = options(_abi.oar_group_opts, timeout_ms=milliseconds(timeout))
    known = {name for name, _ in _abi.oar_group_opts._fields_}
    for name, value in fields.items():
        if name not in known or name in ("size", "timeout_ms", "device"):
            raise TypeError(f"there is no option {name!r} of a group")
        setattr(made, name, text(value) if name in _GROUP_FIELDS else value)
    return made


def init(timeout=None, **fields):
    """Returns the group of all ranks, from what the launcher has set:
    `oarsong run`, torchrun, mpirun or srun; a group of one without any. Options
    are those of oar_group_opts (backend, name, algorithm, ...)."""
    made = ctypes.c_void_p()
    check(lib.oar_group_from_env(byref(_group_options(timeout, fields)),
                                 byref(made)))
    return Group(made)


def create(store, rank, size, timeout=None, **fields):
    """Returns a group whose ranks meet at a store (oarsong.Store, or the
    "host:port" where rank 0 serves one)."""
    made = ctypes.c_void_p()
    opts = _group_options(timeout, fields)
    if isinstance(store, str):
        check(lib.oar_group_create_tcp(text(store), rank, size, byref(opts),
                                       byref(made)))
    else:
        handle = None if store is None else store._open()
        check(lib.oar_group_create(handle, rank, size, byref(opts),
                                   byref(made)))
    return Group(made)


class _Borrowed(Group):
    """A group that the library destroys."""

    def close(self):
        for work in [w for w in self._works if w._handle is not None]:
            work._close()
        self._handle = None
        self._orphans = []


_RankFn = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def simulate(ranks, fn):
    """Runs fn(group) on threads of this process, one for each rank, and returns
    the list of what they return. If one raises, the others are ended, and what
    it raised is raised here."""
    results = [None] * ranks
    raised = []

    @_RankFn
    def run(handle, _):
        group = _Borrowed(handle)
        try:
            results[group.rank] = fn(group)
            return _abi.OAR_OK
        except BaseException as error:  # goes to the caller of simulate
            raised.append(error)
            lib.oar_group_abort(handle, text(f"rank {group.rank} raised "
                                             f"{type(error).__name__}"))
            return _abi.OAR_E_ABORTED
        finally:
            group.close()

    status = lib.oar_sim_run(ranks, run, None)
    if raised:
        raise raised[0]
    check(status)
    return results
