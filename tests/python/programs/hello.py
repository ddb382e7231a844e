# SPDX-License-Identifier: Apache-2.0
"""Each rank adds its number to a sum."""
import array

import oarsong as oar

with oar.init() as group:
    total = array.array("d", [group.rank + 1])
    group.all_reduce(total)
    print(f"rank {group.rank} of {group.size}: {total[0]:g}")
