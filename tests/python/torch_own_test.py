#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of torch.distributed, run over Oarsong.

  torch_own_test.py                  a part that takes under two minutes
  torch_own_test.py --all            all of them (scripts/nightly)
  torch_own_test.py --gloo [NAME..]  over gloo itself, to compare
  torch_own_test.py NAME...          these, as test_broadcast

The tests are asked to test gloo, and every process group of gloo that they make
is one of ours: so nothing is left out because a list does not know our name.
Ends with 77 where PyTorch or its tests are missing."""
import os
import sys
import tempfile
import types
import unittest

try:
    import torch
    import torch.distributed
    from torch.utils import cpp_extension
except ImportError:
    sys.exit(77)
if not any(os.path.exists(os.path.join(
        path, "torch/csrc/distributed/c10d/ProcessGroup.hpp"))
           for path in cpp_extension.include_paths()):
    sys.exit(77)

RANKS = int(os.environ.setdefault("WORLD_SIZE", "3"))
os.environ["BACKEND"] = "gloo"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())

# What is run without --all: one of each kind.
SHORT = """
test_Backend_enum_class test_DDP_create_graph_dummy test_all_gather
test_all_gather_coalesced_complex test_all_gather_object_default_pg
test_all_reduce_coalesced_full_group_sum test_all_reduce_group_max
test_all_reduce_sum_async test_all_reduce_sum_complex test_backend_group
test_barrier_timeout_global test_broadcast test_broadcast_object_list
test_ddp_comm_hook_logging test_gather_full_group test_irecv
test_isend test_isend_autograd_profiler test_new_subgroups
test_reduce_group_product test_scatter_object_list
test_sparse_all_reduce_sum test_all_gather_object_subgroup
test_send_recv_any_source test_send_recv_with_tag
test_DistributedDataParallelCPU test_post_localSGD_optimizer_parity
""".split()

# Tests that ask for what is gloo's own.
CANNOT = {
    "test_ddp_logging_data_cpu": "asks for the name gloo",
    "test_monitored_barrier_failure_order": "gloo's words",
    "test_monitored_barrier_gloo": "gloo's words",
    "test_monitored_barrier_gloo_rank_0_timeout": "gloo's words",
    "test_monitored_barrier_gloo_subgroup": "gloo's words",
    "test_monitored_barrier_wait_all_ranks": "gloo's words",
}


def replace_gloo():
    """Makes every process group of gloo one of ours."""
    from torch.distributed import distributed_c10d as c10d

    import oarsong.torch

    class Options:
        def __init__(self, store, rank, size, timeout):
            self.store, self.timeout = store, timeout
            self.group_rank, self.group_size = rank, size
            self.global_ranks_in_group = []

    def make(store, rank, size, timeout=c10d.default_pg_timeout):
        return oarsong.torch._create(Options(store, rank, size, timeout), None,
                                     "gloo")

    def wrap(**fields):  # a wrapper needs a real one beside it
        c10d.ProcessGroupGloo = real
        try:
            return real_wrap(**fields)
        finally:
            c10d.ProcessGroupGloo = make
    real, real_wrap = c10d.ProcessGroupGloo, c10d._create_process_group_wrapper
    c10d.ProcessGroupGloo, c10d._create_process_group_wrapper = make, wrap


def repair():
    """Mends what fails over gloo too: PyTorch 1.13 with Python 3.11."""
    if sys.version_info >= (3, 11) and torch.__version__.startswith("1."):
        from torch.nn.parallel import _replicated_tensor_ddp_utils as utils
        utils._set_ddp_with_replicated_tensor = lambda on: None


def cases(words):
    """Returns the tests that were asked for."""
    try:
        import expecttest
    except ImportError:  # a base class of PyTorch's, of which nothing is used
        expecttest = sys.modules["expecttest"] = types.ModuleType("expecttest")
        expecttest.TestCase, expecttest.ACCEPT = unittest.TestCase, False
    try:
        from torch.testing._internal.distributed import distributed_test
    except ImportError as error:
        print(f"PyTorch's tests do not load: {error}")
        sys.exit(77)

    repair()

    class Own(distributed_test.TestDistBackend,
              distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(
                torch.multiprocessing.get_context("fork").Process)

    Own.__module__ = "__main__"
    names = unittest.defaultTestLoader.getTestCaseNames(Own)
    chosen = [w for w in words if not w.startswith("-")]
    if not chosen:
        chosen = (names if "--all" in words or "--gloo" in words else
                  [n for n in SHORT if n in names])
    return unittest.TestSuite(Own(name) for name in chosen
                              if name not in CANNOT)


if __name__ == "__main__":
    if "--gloo" not in sys.argv:
        replace_gloo()
    found = unittest.TextTestRunner(verbosity=2).run(cases(sys.argv[1:]))
    sys.exit(not found.wasSuccessful())
