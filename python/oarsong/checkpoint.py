# SPDX-License-Identifier: Apache-2.0
"""Reads checkpoints of Oarsong, without ranks.

    with oarsong.checkpoint.Catalog("runs/gpt") as catalog:
        for entry in catalog:
            print(entry.section, entry.name, entry.dtype, entry.shape)
        weight = catalog.read("h.0.attn.weight")        # a numpy array
"""
import collections
import ctypes
import json
from ctypes import byref

from . import _abi
from ._lib import check, last_error, lib, options, text
from .span import NAMES, dtype_bytes

Entry = collections.namedtuple("Entry", "section name dtype shape bytes "
                                        "alias_of")
Generation = collections.namedtuple("Generation", "name step complete bytes "
                                                  "ranks keep why note")

_NUMPY = {"f32": "float32", "f64": "float64", "f16": "float16", "i8": "int8",
          "u8": "uint8", "i16": "int16", "u16": "uint16", "i32": "int32",
          "u32": "uint32", "i64": "int64", "u64": "uint64", "bool": "bool",
          "bf16": "uint16"}


def generations(folder):
    """Returns all generations of a folder, complete or not, newest last."""
    count, found = ctypes.c_int(), ctypes.c_void_p()
    check(lib.oar_generations(text(folder), byref(count), byref(found)))
    try:
        rows = (_abi.oar_generation * count.value).from_address(found.value or 0) \
            if count.value else []
        return [Generation(g.name.decode(), g.step, bool(g.complete), g.bytes,
                           g.ranks, bool(g.keep), g.why.decode(),
                           g.note.decode()) for g in rows]
    finally:
        lib.oar_free(found)


class Catalog:
    """One generation: the newest complete one of a folder, or the one whose own
    folder is given. To be used by one thread at a time."""

    def __init__(self, path):
        self._handle = ctypes.c_void_p()
        check(lib.oar_catalog_open(text(path), byref(self._handle)))
        self.step = lib.oar_catalog_step(self._handle)

    def _open(self):
        if not self._handle:
            raise ValueError("this catalog is closed")
        return self._handle

    def close(self):
        """Closes it."""
        if self._handle:
            lib.oar_catalog_close(self._handle)
            self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None):
            self.close()

    def __len__(self):
        return lib.oar_catalog_tensors(self._open())

    def __iter__(self):
        for index in range(len(self)):
            entry = options(_abi.oar_catalog_entry)
            check(lib.oar_catalog_entry_at(self._open(), index, byref(entry)))
            yield _entry(entry)

    def find(self, name, section=None):
        """Returns the entry of a name; NotFoundError has the nearest one."""
        entry = options(_abi.oar_catalog_entry)
        check(lib.oar_catalog_find(self._open(), text(section), text(name),
                                   byref(entry)))
        return _entry(entry)

    def values(self):
        """Returns what is no tensor: numbers and texts by their names."""
        found = {}
        name, value = ctypes.c_char_p(), ctypes.c_char_p()
        for index in range(lib.oar_catalog_values(self._open())):
            check(lib.oar_catalog_value_at(self._handle, index, byref(name),
                                           byref(value)))
            try:
                found[name.value.decode()] = json.loads(value.value)
            except ValueError:
                found[name.value.decode()] = value.value.decode()
        return found

    def read_bytes(self, name, section=None):
        """Returns the bytes of a tensor, row by row; checksums are compared."""
        tensor = lib.oar_catalog_tensor(self._open(), text(section), text(name))
        if not tensor:
            raise last_error()
        try:
            count = lib.oar_tensor_count(tensor)
            size = count * dtype_bytes(lib.oar_tensor_dtype(tensor))
            return bytearray(ctypes.string_at(lib.oar_tensor_data(tensor),
                                              size)) if size else bytearray()
        finally:
            lib.oar_tensor_release(tensor)

    def read(self, name, section=None):
        """Returns a tensor as a numpy array; bf16, which numpy does not have,
        as the uint16 of its bits."""
        import numpy
        entry = self.find(name, section)
        data = self.read_bytes(name, section)
        return numpy.frombuffer(data, _NUMPY[entry.dtype]).reshape(entry.shape)

    def verify(self):
        """Reads every byte and compares all checksums; raises the first
        difference."""
        check(lib.oar_catalog_verify(self._open(), None, None))


def _entry(entry):
    shape = tuple(entry.shape.dim[:entry.shape.ndim])
    alias = entry.alias_of.decode() if entry.alias_of else None
    return Entry(entry.section.decode(), entry.name.decode(),
                 NAMES[entry.dtype], shape, entry.bytes, alias)
