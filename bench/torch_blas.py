# SPDX-License-Identifier: Apache-2.0
"""Imported before torch: where PyTorch's OpenBLAS is older than the processor and would use its
oldest kernels, names better ones, as Oarsong does for its own. So the peer is as fast as it can be."""
import os
import subprocess
import sys

ASK = """
import ctypes
core = ctypes.CDLL("libblas.so.3").openblas_get_corename
core.restype = ctypes.c_char_p
print(core().decode())
"""


def name_kernels():
    core = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=False)
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        flags = info.read().split()
    if core.stdout.strip() == "Prescott" and "avx2" in flags:
        os.environ["OPENBLAS_CORETYPE"] = \
            "Cooperlake" if "avx512_bf16" in flags else \
            "SkylakeX" if "avx512vl" in flags else "Haswell"


if "OPENBLAS_CORETYPE" not in os.environ:
    name_kernels()
