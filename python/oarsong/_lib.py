# SPDX-License-Identifier: Apache-2.0
"""Loads liboarsong and turns its failures into exceptions.

The library is the first of these that is there: the one that OARSONG_LIBRARY
names, the one beside this package (an installation, or a source tree that was
built), the one that the system's loader finds.
"""
import ctypes
import os
import sys
import threading

from . import _abi

SONAME = "liboarsong.so.0"


def _candidates():
    named = os.environ.get("OARSONG_LIBRARY")
    if named:
        return [named]
    here = os.path.dirname(os.path.abspath(__file__))
    tree = os.path.dirname(os.path.dirname(here))
    prefix = os.path.normpath(os.path.join(here, "../../../.."))
    machine = os.uname().machine
    return [
        os.path.join(tree, "build/release/lib", SONAME),
        os.path.join(prefix, "lib", SONAME),
        os.path.join(prefix, "lib", machine + "-linux-gnu", SONAME),
        SONAME,
    ]


class Library:
    """The functions of the C library, found at their first use."""

    def __init__(self):
        self._dll = None
        self._unchecked = {}

    def load(self):
        """Loads the library; ImportError says what was tried."""
        tried = []
        for path in _candidates():
            if os.path.sep in path and not os.path.exists(path):
                tried.append(path)
                continue
            try:
                self._dll = ctypes.CDLL(path)
                break
            except OSError as error:
                tried.append(f"{path} ({error})")
        else:
            raise ImportError(
                "there is no liboarsong: build it (make), install it (make "
                "install), or name it in OARSONG_LIBRARY. Tried: " +
                ", ".join(tried))
        loaded = self.oar_version()
        if loaded < _abi.OAR_VERSION_CODE:
            raise ImportError(
                f"this package needs liboarsong {_abi.OAR_VERSION_CODE} or "
                f"newer, but {path} is {loaded}")
        self.path = self._path()

    def _path(self):
        with open("/proc/self/maps") as maps:
            for line in maps:
                if "/liboarsong.so" in line:
                    return line[line.index("/"):].rstrip("\n")
        return ""

    def unchecked(self, name):
        """Returns a function that returns a status and converts no argument:
        each must be None, a text in bytes, an int for C's int, or an object of
        ctypes. Calling it takes a quarter less time."""
        function = self._unchecked.get(name)
        if function is None:
            if self._dll is None:
                self.load()
            function = self._unchecked[name] = self._dll[name]
        return function

    def __getattr__(self, name):
        types = _abi.FUNCTIONS.get(name)
        if types is None:
            raise AttributeError(f"liboarsong has no function {name}")
        if self._dll is None:
            self.load()
        function = getattr(self._dll, name)
        function.restype = types[0]
        function.argtypes = types[1:]
        setattr(self, name, function)
        return function


lib = Library()


class Error(RuntimeError):
    """A call that failed. Its text names ranks, places and what to do.

    status is the name of the failure ("OAR_E_PEER"), rank the rank that saw it
    first, peer the rank that it is about (-1: none), site where the call is
    ("train.py:40").
    """

    def __init__(self, record):
        self.code = record.status
        self.status = lib.oar_status_name(record.status).decode()
        self.rank = record.rank
        self.peer = record.peer
        self.operation = record.operation.decode(errors="replace")
        self.site = record.site.decode(errors="replace")
        self.label = record.label.decode(errors="replace")
        self.host = record.host.decode(errors="replace")
        self.text = record.text.decode(errors="replace")
        where = ""
        if self.site and self.site not in self.text:
            where = f" (in {self.operation or 'a call'} at {self.site})"
        super().__init__(f"{self.status}: {self.text}{where}")


class ArgumentError(Error, ValueError):
    """An argument that the call does not take."""


class PeerError(Error, ConnectionError):
    """A rank that the operation needs is gone."""


class TimeoutError(Error, TimeoutError):  # pylint: disable=redefined-builtin
    """The operation was not done in time."""


class MismatchError(Error, ValueError):
    """Ranks have called different things; the text has both lines."""


class NotFoundError(Error, LookupError):
    """There is nothing of that name."""


class OutOfMemoryError(Error, MemoryError):
    """There was no memory for it."""


_CLASSES = {
    _abi.OAR_E_ARG: ArgumentError,
    _abi.OAR_E_RANK: ArgumentError,
    _abi.OAR_E_WORLD: ArgumentError,
    _abi.OAR_E_SIZE: ArgumentError,
    _abi.OAR_E_SHAPE: ArgumentError,
    _abi.OAR_E_DTYPE: ArgumentError,
    _abi.OAR_E_NOMEM: OutOfMemoryError,
    _abi.OAR_E_PEER: PeerError,
    _abi.OAR_E_TIMEOUT: TimeoutError,
    _abi.OAR_E_MISMATCH: MismatchError,
    _abi.OAR_E_NOT_FOUND: NotFoundError,
}


def error_of(record):
    """Returns the exception for a record of a failure."""
    return _CLASSES.get(record.status, Error)(record)


def last_error():
    """Returns the exception for this thread's last failure."""
    return error_of(
        _abi.oar_error.from_address(lib.oar_last_error()))


def check(status):
    """Raises what the last call of this thread failed with."""
    if status:
        raise last_error()


_INSIDE = ("oarsong", "torch", "contextlib")
files = {}  # paths as C takes them; b"": of this package, or of PyTorch


def _learn(frame):
    """Returns what `files` is to have for the file of a frame."""
    path = frame.f_code.co_filename
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    file = files[path] = b"" if package in _INSIDE else os.fsencode(path)
    return file


def _outside(frame):
    """Returns file and line of the first frame outside, from this one on."""
    while frame is not None:
        file = files.get(frame.f_code.co_filename)
        if file is None:
            file = _learn(frame)
        if file:
            return file, frame.f_lineno
        frame = frame.f_back
    return None, 0


def elsewhere():
    """Returns file and line of the thread that one of PyTorch's works for: the
    line of loss.backward(). It is a thread that waits inside of PyTorch; the
    main thread goes first, and its line is taken where no thread waits so."""
    frames = sys._current_frames()
    main = frames.pop(threading.main_thread().ident, None)
    for frame in (main, *frames.values()):
        if frame is not None and not (
                files.get(frame.f_code.co_filename) or _learn(frame)):
            found = _outside(frame)
            if found[0]:
                return found
    return _outside(main)


def here():
    """Returns file and line of the caller, outside of this package and of
    PyTorch. A thread of PyTorch's own has those of another thread."""
    file, line = _outside(sys._getframe(2))
    return (file, line) if file else elsewhere()


def text(value):
    """Returns a text, or None, as C takes it."""
    return None if value is None else os.fsencode(value)


def milliseconds(seconds, default=0):
    """Returns a time in seconds as the library counts it: None is `default`,
    infinity has no end."""
    if seconds is None:
        return default
    if seconds == float("inf"):
        return -1
    if seconds < 0:
        raise ValueError(f"a time of {seconds} seconds")
    return max(1, int(seconds * 1000 + 0.5))


def options(struct, **fields):
    """Returns an options struct with its size set, and these fields."""
    made = struct()
    made.size = ctypes.sizeof(struct)
    for name, value in fields.items():
        if value is not None:
            setattr(made, name, value)
    return made
