# SPDX-License-Identifier: Apache-2.0
"""Memory of Python as the library sees it.

Anything that gives a buffer will do (numpy arrays, array.array, bytearray,
memoryview, ctypes arrays), and anything that speaks DLPack (tensors of PyTorch,
JAX, CuPy, on the CPU or on a GPU). The memory is used where it lies and is held
until the operation is done with it, so that it can be neither freed nor resized
under it. It must be contiguous, row by row.
"""
import ctypes

from . import _abi

DTYPES = {
    "f32": _abi.OAR_F32, "f64": _abi.OAR_F64, "f16": _abi.OAR_F16,
    "bf16": _abi.OAR_BF16, "i8": _abi.OAR_I8, "u8": _abi.OAR_U8,
    "i16": _abi.OAR_I16, "u16": _abi.OAR_U16, "i32": _abi.OAR_I32,
    "u32": _abi.OAR_U32, "i64": _abi.OAR_I64, "u64": _abi.OAR_U64,
    "bool": _abi.OAR_BOOL, "f8e4m3": _abi.OAR_F8E4M3,
    "f8e5m2": _abi.OAR_F8E5M2,
}
NAMES = {number: name for name, number in DTYPES.items()}

_INTEGER = {1: _abi.OAR_I8, 2: _abi.OAR_I16, 4: _abi.OAR_I32, 8: _abi.OAR_I64}
_WHOLE = {1: _abi.OAR_U8, 2: _abi.OAR_U16, 4: _abi.OAR_U32, 8: _abi.OAR_U64}
_FLOAT = {2: _abi.OAR_F16, 4: _abi.OAR_F32, 8: _abi.OAR_F64}


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("owner", ctypes.c_void_p),
        ("bytes", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = [ctypes.c_void_p]
_release.restype = None
_FORMAT, _CONTIGUOUS = 0x4, 0x38


def _dtype_of_format(format, itemsize):
    letter = format.lstrip(b"@=<")
    if letter in (b"f", b"d", b"e"):
        return _FLOAT.get(itemsize)
    if letter in (b"b", b"h", b"i", b"l", b"q", b"n"):
        return _INTEGER.get(itemsize)
    if letter in (b"B", b"H", b"I", b"L", b"Q", b"N", b"c"):
        return _WHOLE.get(itemsize)
    return _abi.OAR_BOOL if letter == b"?" else None


_formats = {}


class Span:
    """Memory with a count and a dtype, held as long as this object lives.

    Made once, it can be given to any number of calls, which is quicker than
    giving the array each time. dtype: a name such as "bf16", for memory whose
    owner does not know it.
    """

    __slots__ = ("c", "_buffer", "_owner")

    def __init__(self, memory, dtype=None):
        self._buffer = None
        self._owner = memory
        self.c = _abi.oar_span()
        if not self._from_buffer(memory) and not self._from_dlpack(memory):
            raise TypeError(
                f"{type(memory).__name__} gives neither a buffer nor DLPack: "
                "pass an array")
        if dtype is not None:
            self._view(dtype)

    def _from_buffer(self, memory):
        buffer = _Buffer()
        try:
            _get(memory, ctypes.addressof(buffer), _FORMAT | _CONTIGUOUS)
        except TypeError:
            return False
        except (BufferError, ValueError) as error:
            if hasattr(memory, "__dlpack__") and not hasattr(memory, "strides"):
                return False
            raise ValueError(
                "the array is not contiguous: pass a copy "
                f"(numpy.ascontiguousarray): {error}") from None
        self._buffer = buffer
        format = buffer.format or b"B"
        dtype = _formats.get((format, buffer.itemsize))
        if dtype is None:
            dtype = _dtype_of_format(format, buffer.itemsize)
            if dtype is None:
                raise TypeError(
                    f"elements of the format {format.decode()!r} with "
                    f"{buffer.itemsize} bytes have no dtype here; they can be "
                    "sent as bytes: pass a view of u8")
            _formats[format, buffer.itemsize] = dtype
        c = self.c
        c.data = buffer.data
        c.count = buffer.bytes // buffer.itemsize if buffer.itemsize else 0
        c.dtype = dtype
        c.read_only = buffer.readonly
        return True

    def _from_dlpack(self, memory):
        if not hasattr(memory, "__dlpack__"):
            return False
        if getattr(memory, "requires_grad", False):
            memory = memory.detach()
        capsule = memory.__dlpack__()
        self._owner = capsule, memory
        read_dlpack(capsule, self.c)
        return True

    def _view(self, name):
        dtype = DTYPES.get(str(name))
        if dtype is None:
            raise ValueError(f"there is no dtype {name!r}: one of " +
                             ", ".join(DTYPES))
        had = dtype_bytes(self.c.dtype)
        has = dtype_bytes(dtype)
        if self.c.count * had % has != 0:
            raise ValueError(f"{self.c.count * had} bytes are no whole number "
                             f"of {name}")
        self.c.count = self.c.count * had // has
        self.c.dtype = dtype

    @property
    def count(self):
        """How many elements it has."""
        return self.c.count

    @property
    def dtype(self):
        """The name of its dtype."""
        return NAMES[self.c.dtype]

    def part(self, first, count):
        """Returns a span over some of the elements, which holds this one."""
        if first < 0 or count < 0 or first + count > self.c.count:
            raise ValueError(f"elements {first} to {first + count} of a span "
                             f"of {self.c.count}")
        made = Span.__new__(Span)
        made._buffer = None
        made._owner = self
        made.c = _abi.oar_span.from_buffer_copy(self.c)
        made.c.data = (self.c.data or 0) + first * dtype_bytes(self.c.dtype)
        made.c.count = count
        return made

    def __del__(self):
        if self._buffer is not None:
            _release(ctypes.addressof(self._buffer))


def dtype_bytes(dtype):
    """Returns the bytes of one element."""
    return _BYTES[dtype]


_BYTES = {
    _abi.OAR_F32: 4, _abi.OAR_F64: 8, _abi.OAR_F16: 2, _abi.OAR_BF16: 2,
    _abi.OAR_I8: 1, _abi.OAR_U8: 1, _abi.OAR_I16: 2, _abi.OAR_U16: 2,
    _abi.OAR_I32: 4, _abi.OAR_U32: 4, _abi.OAR_I64: 8, _abi.OAR_U64: 8,
    _abi.OAR_BOOL: 1, _abi.OAR_F8E4M3: 1, _abi.OAR_F8E5M2: 1,
}

# ---- DLPack ----------------------------------------------------------------


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_pointer.restype = ctypes.c_void_p
_CODES = {0: _INTEGER, 1: _WHOLE, 2: _FLOAT, 4: {2: _abi.OAR_BF16},
          6: {1: _abi.OAR_BOOL}, 10: {1: _abi.OAR_F8E4M3},
          12: {1: _abi.OAR_F8E5M2}}
_DEVICES = {1: _abi.OAR_CPU, 2: _abi.OAR_CUDA, 3: _abi.OAR_CPU,
            13: _abi.OAR_CUDA}  # 3: pinned by CUDA; 13: managed by it


def _contiguous(tensor, shape):
    if not tensor.strides:
        return True
    step = 1
    for i in reversed(range(tensor.ndim)):
        if shape[i] != 1 and tensor.strides[i] != step:
            return 0 in shape
        step *= shape[i]
    return True


def read_dlpack(capsule, span):
    """Fills in a span from a DLPack capsule, which must live as long."""
    tensor = _DLTensor.from_address(_pointer(capsule, b"dltensor"))
    shape = [tensor.shape[i] for i in range(tensor.ndim)]
    kind = _DEVICES.get(tensor.device_type)
    dtype = _CODES.get(tensor.code, {}).get(tensor.bits // 8)
    if kind is None:
        raise TypeError(f"a tensor on a device of DLPack's kind "
                        f"{tensor.device_type}: only CPU and CUDA are known")
    if dtype is None or tensor.lanes != 1:
        raise TypeError(
            f"elements of DLPack's code {tensor.code} with {tensor.bits} bits "
            "have no dtype here; they can be sent as bytes: pass a view of u8")
    if not _contiguous(tensor, shape):
        raise ValueError(f"the tensor {shape} is not contiguous: pass a copy "
                         "(tensor.contiguous())")
    span.data = (tensor.data or 0) + tensor.byte_offset
    span.count = 1
    for length in shape:
        span.count *= length
    span.dtype = dtype
    span.device.kind = kind
    span.device.index = tensor.device_id if kind == _abi.OAR_CUDA else 0


EMPTY = _abi.oar_span()


def span_of(memory):
    """Returns a span for what was given: itself, if it is one."""
    return memory if type(memory) is Span else Span(memory)
