# SPDX-License-Identifier: Apache-2.0
"""Oarsong in Python: groups of ranks, collectives, messages, stores.

    import oarsong as oar

    group = oar.init()                  # under `oarsong run`, torchrun, mpirun
    group.all_reduce(array, oar.SUM)    # numpy, array.array, torch, ...
    work = group.all_reduce(array, wait=False)
    work.wait()
"""
from . import checkpoint
from ._lib import (ArgumentError, Error, MismatchError, NotFoundError,
                   OutOfMemoryError, PeerError, TimeoutError, lib)
from .group import (ANY_SOURCE, ANY_TAG, AVG, BAND, BOR, BXOR, MAX, MIN, PROD,
                    SUM, WEIGHTED_MEAN, Group, Message, Op, create, init,
                    premul_sum, simulate)
from .shared import shared_array
from .span import Span
from .store import Store, StoreServer
from .work import Work, wait_all, wait_any


def version():
    """Returns how the library was built, in one line."""
    return lib.oar_build_text().decode()
