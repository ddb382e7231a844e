# SPDX-License-Identifier: Apache-2.0
"""Rank 1 kills itself in the third round; the others say what they are told."""
import array
import os
import signal
import sys
import time

import oarsong as oar

group = oar.init(timeout=60)
for step in range(1000):
    if group.rank == 1 and step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        group.all_reduce(array.array("f", [1.0]))  # where it is seen
    except oar.PeerError as error:
        print(f"peer {error.peer} after {time.monotonic() - start:.1f} s: "
              f"{error}", flush=True)
        sys.exit(0)
sys.exit(5)
