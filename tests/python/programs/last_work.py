# SPDX-License-Identifier: Apache-2.0
"""The function of a work closes the work's group: it runs on a thread of that
group, which cannot wait for itself."""
import array
import threading
import time

import oarsong as oar

group = oar.init(timeout=60)
for _ in range(3):
    other, closed = group.dup(), threading.Event()

    def close(_):
        other.close()
        closed.set()
    if group.rank == 0:
        other.recv(array.array("i", [0]), 1, wait=False).then(close)
        assert closed.wait(60)
    else:
        time.sleep(0.05)  # the other's thread waits already
        other.send(array.array("i", [1]), 0)
        other.close()
    group.barrier()
