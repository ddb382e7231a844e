# SPDX-License-Identifier: Apache-2.0
"""Memory that ranks of the same host reach, so that collectives on it are done
in place, without a copy."""
import ctypes
import weakref
from ctypes import byref

from ._lib import check, lib


def shared_array(size):
    """Returns `size` zeroed bytes as a writable buffer of shared memory:
    numpy.frombuffer(oarsong.shared_array(4096), "float32"). It is freed when
    nothing refers to it any more."""
    memory = ctypes.c_void_p()
    check(lib.oar_shared_alloc(size, byref(memory)))
    made = (ctypes.c_ubyte * size).from_address(memory.value)
    weakref.finalize(made, lib.oar_shared_free, memory.value)
    return made
