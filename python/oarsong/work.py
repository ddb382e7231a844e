# SPDX-License-Identifier: Apache-2.0
"""Operations in flight."""
import ctypes
import threading

from ._lib import check, last_error, lib, milliseconds

_Done = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)
_waiting = {}  # functions of Work.then that have not run, by their number
_numbers = iter(range(1, 1 << 62))


finishing = threading.local()  # .on: a function of Work.then runs here


@_Done
def _done(number, status):
    finishing.on = True
    try:
        _finish(number, status)
    finally:
        finishing.on = False


def _finish(number, status):
    fn, group = _waiting.pop(number)
    error = None
    if status:
        # What failed alone is this thread's last error; else the group's.
        error = last_error()
        if error.code != status:
            error = group.fault() or error
    fn(error)


class Work:
    """An operation that goes on by itself. Its memory is held until it is
    done, also if this object is not kept."""

    def __init__(self, group, handle, held, message=None):
        self._group = group
        group._works.add(self)
        self._handle = handle
        self._held = held
        self._message = message
        self._is_done = False

    def wait(self, timeout=None):
        """Waits until it is done; raises what it failed with. A timeout in
        seconds ends neither the operation nor the group."""
        self._check_open()
        if timeout is None:
            status = lib.oar_work_wait(self._handle)
        else:
            status = lib.oar_work_wait_for(self._handle, milliseconds(timeout))
            if status:
                self.done()
                check(status)
        self._end()
        check(status)
        return self.message

    def done(self):
        """Returns whether it is done, without waiting; raises nothing."""
        if not self._is_done and self._handle is not None:
            found = ctypes.c_int()
            lib.oar_work_test(self._handle, ctypes.byref(found))
            if found.value:
                self._end()
        return self._is_done

    def then(self, fn):
        """Calls fn(None), or fn(exception), once it is done: on whatever thread
        finds that out. fn must not wait for anything."""
        self._check_open()
        number = next(_numbers)
        _waiting[number] = fn, self._group
        status = lib.oar_work_then(self._handle, _done, number)
        if status:
            del _waiting[number]
            check(status)

    def cancel(self):
        """Gives up a message that has not been matched; returns whether it
        was given up."""
        self._check_open()
        given_up = ctypes.c_int()
        check(lib.oar_work_cancel(self._handle, ctypes.byref(given_up)))
        return bool(given_up.value)

    @property
    def message(self):
        """Of a receive that is done: its source, tag and bytes; else None."""
        return self._message if self._is_done else None

    def _check_open(self):
        if self._handle is None:
            raise ValueError("the group of this operation is closed")

    def _close(self):
        lib.oar_work_release(self._handle)
        self._handle = None

    def _end(self):
        self._is_done = True
        self._held = None

    def __del__(self):
        if self._handle is None:
            return
        if not self._is_done and not self.done():
            # The operation still uses its memory: the group keeps both.
            self._group._orphans.append(
                Work(self._group, self._handle, self._held, self._message))
            self._handle = None
            return
        self._close()


def wait_all(works):
    """Waits for all; raises the first failure in the order given."""
    failure = None
    for work in works:
        try:
            work.wait()
        except Exception as error:  # the others are waited for, too
            failure = failure or error
    if failure is not None:
        raise failure


def wait_any(works):
    """Waits until one is done, and returns its index; raises its failure."""
    works = list(works)
    handles = (ctypes.c_void_p * len(works))(*[w._handle for w in works])
    index = ctypes.c_int(-1)
    status = lib.oar_work_wait_any(len(works), handles, ctypes.byref(index))
    if index.value >= 0:
        works[index.value]._end()
    check(status)
    return index.value
