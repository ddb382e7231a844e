#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of torch.distributed, run over Oarsong.

  torch_own_test.py                  a part that takes under two minutes
  torch_own_test.py --all            all of them (scripts/nightly)
  torch_own_test.py --gloo [NAME..]  over gloo itself, to compare
  torch_own_test.py --mpi [NAME..]   those that PyTorch keeps for MPI: all_to_all
  torch_own_test.py NAME...          these, as test_broadcast
  torch_own_test.py --c10d FOLDER    c10d's tests, in FOLDER: test/distributed of
                                     the source of this PyTorch

The tests are asked to test gloo, and every process group of gloo that they make
is one of ours: so nothing is left out because a list does not know our name.
WORLD_SIZE says how many ranks: 3, or 4 for more than a part; PyTorch 2 wants 8
for some.
Ends with 77 where PyTorch or its tests, or what the backend is compiled with, are
missing."""
import importlib
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

os.environ.setdefault("WORLD_SIZE", "4" if "--all" in sys.argv or "--gloo" in
                      sys.argv or "--mpi" in sys.argv else "3")
os.environ["BACKEND"] = "mpi" if "--mpi" in sys.argv else "gloo"
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
test_monitored_barrier_gloo_subgroup test_monitored_barrier_wait_all_ranks
test_ddp_logging_data_cpu
""".split()

# Tests that cannot pass, and why.
CANNOT = {
    "test_allgather_checks": "tensors of different sizes are allowed",
    "test_allreduce_coalesced_checks": "different dtypes are allowed",
}
if not torch.__version__.startswith("1."):
    CANNOT["test_all_to_all_single"] = "strided tensors are allowed"
    CANNOT["test_ddp_logging_data_cpu"] = \
        "PyTorch 2 says \"custom\" for every backend but its own"
if sys.version_info >= (3, 14) and "--c10d" not in sys.argv:  # nor over gloo
    for name in ("test_gather_object", "test_gather_object_subgroup"):
        CANNOT[name] = "this Python does not pickle the test's local class"

# Tests that ask for the name of the backend: they are given ours.
NAMED = {"test_ddp_logging_data_cpu"}

# The files of PyTorch's test/distributed that test c10d on the CPU.
C10D = ("test_c10d_common", "test_c10d_gloo", "test_c10d_object_collectives",
        "test_c10d_spawn_gloo")


def replace_gloo():
    """Makes every process group of gloo one of ours."""
    from torch.distributed import distributed_c10d as c10d

    import oarsong.torch
    real, real_wrap = c10d.ProcessGroupGloo, c10d._create_process_group_wrapper

    class Options:
        def __init__(self, store, rank, size, timeout):
            self.store, self.timeout = store, timeout
            self.group_rank, self.group_size = rank, size
            self.global_ranks_in_group = []

    class Kind(type):
        def __call__(cls, store, rank, size, options=None,
                     timeout=c10d.default_pg_timeout, **_):
            timeout = getattr(options, "_timeout", timeout)
            return oarsong.torch._create(Options(store, rank, size, timeout),
                                         None, "gloo")

        def __getattr__(cls, name):
            return getattr(real, name)

        def __instancecheck__(cls, group):
            return isinstance(group, oarsong.torch._Group)

    class Gloo(metaclass=Kind):
        pass

    def use(kind):
        c10d.ProcessGroupGloo = torch.distributed.ProcessGroupGloo = kind

    def wrap(**fields):  # a wrapper needs a real one beside it
        use(real)
        try:
            return real_wrap(**fields)
        finally:
            use(Gloo)
    use(Gloo)
    oarsong.torch._Group.create_device = real.create_device
    c10d._create_process_group_wrapper = wrap
    plugins = getattr(c10d.Backend, "_plugins", {})
    if "GLOO" in plugins:  # newer ones make gloo's groups as all others
        plugins["GLOO"] = c10d.Backend._BackendPlugin(
            lambda *options: oarsong.torch._create(*options, "gloo"), True)


def repair():
    """Mends what fails over gloo too: PyTorch 1.13 with Python 3.11."""
    if sys.version_info >= (3, 11) and torch.__version__.startswith("1."):
        from torch.nn.parallel import _replicated_tensor_ddp_utils as utils
        utils._set_ddp_with_replicated_tensor = lambda on: None


def fork(case):
    """Starts the ranks of a test as copies of this process."""
    case._start_processes(torch.multiprocessing.get_context("fork").Process)


def is_asked(name):
    return name not in CANNOT or "--gloo" in sys.argv


def prepare():
    """Makes PyTorch's tests load."""
    try:
        import expecttest
    except ImportError:  # a base class of PyTorch's, of which nothing is used
        expecttest = sys.modules["expecttest"] = types.ModuleType("expecttest")
        expecttest.TestCase, expecttest.ACCEPT = unittest.TestCase, False
    repair()


def cases(words):
    """Returns the tests of distributed_test.py that were asked for."""
    try:
        from torch.testing._internal.distributed import distributed_test
    except ImportError as error:
        print(f"PyTorch's tests do not load: {error}")
        sys.exit(77)

    class Own(distributed_test.TestDistBackend,
              distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            named = self._testMethodName in NAMED or "--mpi" in sys.argv
            if named and "--gloo" not in sys.argv:
                distributed_test.BACKEND = "oarsong"
            fork(self)
            distributed_test.BACKEND = "gloo"

    Own.__module__ = "__main__"
    names = unittest.defaultTestLoader.getTestCaseNames(Own)
    if not words:
        words = ([n for n in names if "all_to_all" in n and "cuda" not in n]
                 if "--mpi" in sys.argv else
                 names if "--all" in sys.argv or "--gloo" in sys.argv else
                 [n for n in SHORT if n in names])
    return unittest.TestSuite(Own(name) for name in words if is_asked(name))


def c10d_cases(folder, words):
    """Returns the tests of c10d in a source tree's test/distributed."""
    from torch.testing._internal import common_distributed
    common_distributed.MultiProcessTestCase._spawn_processes = fork
    sys.path.insert(0, folder)
    del os.environ["WORLD_SIZE"], os.environ["BACKEND"]
    found = unittest.TestSuite()
    for name in C10D:
        for kind in vars(importlib.import_module(name)).values():
            if (isinstance(kind, type) and kind.__module__ == name and
                    issubclass(kind, unittest.TestCase)):
                found.addTests(
                    kind(test) for test in
                    unittest.defaultTestLoader.getTestCaseNames(kind)
                    if test in (words or [test]) and is_asked(test))
    return found


def main():
    words = [w for w in sys.argv[1:] if not w.startswith("-")]
    if "--gloo" not in sys.argv:
        replace_gloo()
        if sys.modules["oarsong.torch"]._extension is None:
            sys.exit(77)
    prepare()
    found = unittest.TextTestRunner(verbosity=2).run(
        c10d_cases(words[0], words[1:]) if "--c10d" in sys.argv else
        cases(words))
    return not found.wasSuccessful()


if __name__ == "__main__":
    sys.exit(main())
