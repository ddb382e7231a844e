# SPDX-License-Identifier: Apache-2.0
"""A small key-value store, where ranks find each other."""
import ctypes
from ctypes import byref

from . import _abi
from ._lib import check, lib, milliseconds, options, text


def _bytes(value):
    return value.encode() if isinstance(value, str) else bytes(value)


class Store:
    """Make one by Store.memory(), .file(folder), .tcp("host:port") or
    .prefix(store, text). Values are bytes; a timeout is in seconds."""

    def __init__(self, handle, parent=None):
        self._handle = handle
        self._parent = parent

    @classmethod
    def _make(cls, function, *arguments, parent=None):
        made = ctypes.c_void_p()
        check(function(*arguments, byref(made)))
        return cls(made, parent)

    @classmethod
    def memory(cls):
        """In this process only."""
        return cls._make(lib.oar_store_create_memory)

    @classmethod
    def file(cls, folder):
        """A folder that all ranks see."""
        return cls._make(lib.oar_store_create_file, text(folder))

    @classmethod
    def tcp(cls, address, timeout=60, secret=None):
        """The store that a StoreServer keeps, which has the same secret
        (64 hex digits; None: that of the job)."""
        opts = options(_abi.oar_store_opts, secret=text(secret),
                       timeout_ms=milliseconds(timeout) or 1)
        return cls._make(lib.oar_store_create_tcp_with, text(address),
                         byref(opts))

    @classmethod
    def prefix(cls, store, prefix):
        """The keys of another store that begin with a prefix, without it."""
        return cls._make(lib.oar_store_create_prefix, store._open(),
                         text(prefix), parent=store)

    def _open(self):
        if self._handle is None:
            raise ValueError("this store is closed")
        return self._handle

    def close(self):
        """Gives up the handle; keys stay."""
        if self._handle is not None:
            lib.oar_store_destroy(self._handle)
            self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None) is not None:
            self.close()

    def set(self, key, value):
        """Puts a value under a key."""
        value = _bytes(value)
        check(lib.oar_store_set(self._open(), text(key), value, len(value)))

    def get(self, key, timeout=300):
        """Waits until the key is there, and returns its value."""
        value, size = ctypes.c_void_p(), ctypes.c_size_t()
        wait = 0 if timeout == 0 else milliseconds(timeout)
        check(lib.oar_store_get(self._open(), text(key), wait, byref(value),
                                byref(size)))
        try:
            return ctypes.string_at(value, size.value)
        finally:
            lib.oar_free(value)

    def add(self, key, delta):
        """Adds to the number under a key, and returns the sum."""
        total = ctypes.c_int64()
        check(lib.oar_store_add(self._open(), text(key), delta, byref(total)))
        return total.value

    def compare_set(self, key, expected, wanted):
        """Puts `wanted` there if it holds `expected` (None: if it is not
        there); returns whether it did."""
        swapped = ctypes.c_int()
        had = None if expected is None else _bytes(expected)
        wanted = _bytes(wanted)
        check(lib.oar_store_compare_set(
            self._open(), text(key), had, 0 if had is None else len(had),
            wanted, len(wanted), byref(swapped)))
        return bool(swapped.value)

    def delete(self, key):
        """Removes a key; NotFoundError."""
        check(lib.oar_store_delete(self._open(), text(key)))

    def wait(self, keys, timeout=300):
        """Waits until all keys are there."""
        keys = [text(key) for key in keys]
        wait = 0 if timeout == 0 else milliseconds(timeout)
        check(lib.oar_store_wait(self._open(), len(keys),
                                 (ctypes.c_char_p * len(keys))(*keys), wait))

    def keys(self, prefix=""):
        """Returns the keys that begin with a prefix, sorted."""
        count, keys = ctypes.c_int(), ctypes.c_void_p()
        check(lib.oar_store_list(self._open(), text(prefix), byref(count),
                                 byref(keys)))
        try:
            names = ctypes.cast(keys, ctypes.POINTER(ctypes.c_char_p))
            return [names[i].decode() for i in range(count.value)]
        finally:
            lib.oar_free(keys)

    def clear(self):
        """Removes every key."""
        check(lib.oar_store_clear(self._open()))


class StoreServer:
    """Serves a store from this process. address: where, "ip:port"; secret:
    64 hex digits that its callers know (None: that of the job)."""

    def __init__(self, address="127.0.0.1:0", secret=None):
        self._handle = ctypes.c_void_p()
        opts = options(_abi.oar_store_opts, secret=text(secret))
        check(lib.oar_store_serve_with(text(address), byref(opts),
                                       byref(self._handle)))
        self.address = lib.oar_store_server_address(self._handle).decode()

    def close(self):
        """Ends it, with all it keeps."""
        if self._handle:
            lib.oar_store_server_destroy(self._handle)
            self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None):
            self.close()
