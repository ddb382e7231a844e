#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over Oarsong: the same results as over gloo, and failures
that name the line. Ends with 77 where PyTorch, or what the backend is compiled
with, is missing."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.normpath(os.path.join(HERE, "../../examples/python"))
COMMAND = os.path.join(os.environ["OARSONG_BUILD_DIR"], "bin/oarsong")
os.environ.setdefault("USE_LIBUV", "0")  # Debian builds PyTorch without it

try:
    import torch
    from torch.utils import cpp_extension
    header = "torch/csrc/distributed/c10d/ProcessGroup.hpp"
    if not any(os.path.exists(os.path.join(path, header))
               for path in cpp_extension.include_paths()):
        sys.exit(77)
except ImportError:
    sys.exit(77)


def program(name):
    return os.path.join(HERE, "programs", name)


def run(ranks, *words, **environment):
    return subprocess.run(
        [COMMAND, "run", "-n", str(ranks), "--keep-going", sys.executable,
         *words], capture_output=True, text=True, timeout=400, check=False,
        env=dict(os.environ, **environment))


def line_of(mark, name="torch_faults.py"):
    """Returns the place of a line of torch_faults.py; name: of its copy."""
    with open(program("torch_faults.py")) as file:
        for number, line in enumerate(file, 1):
            if line.rstrip().endswith("# mark: " + mark):
                return f"{name}:{number}"


def slow():
    """Returns by how much other programs slow this one down."""
    return max(1, os.getloadavg()[0] / os.cpu_count())


def flat(value):
    if isinstance(value, list):
        return [x for part in value for x in flat(part)]
    return [value]


class Results(unittest.TestCase):
    def compare(self, ranks, **environment):
        with tempfile.TemporaryDirectory() as folder:
            for backend in ("gloo", "oarsong"):
                done = run(ranks, program("torch_ranks.py"), backend, folder,
                           **environment)
                self.assertEqual(done.returncode, 0,
                                 done.stdout + done.stderr)
            for rank in range(ranks):
                with open(f"{folder}/gloo.{rank}") as file:
                    theirs = json.load(file)
                with open(f"{folder}/oarsong.{rank}") as file:
                    ours = json.load(file)
                self.assertLessEqual(theirs.keys(), ours.keys())
                self.assertGreater(len(theirs), 15)
                for name, value in theirs.items():
                    with self.subTest(rank=rank, name=name):
                        self.same(flat(value), flat(ours[name]), name)

    def same(self, theirs, ours, name):
        if not name.startswith("trained"):
            self.assertEqual(theirs, ours)
            return
        self.assertEqual(len(theirs), len(ours))
        for a, b in zip(theirs, ours):
            self.assertLess(abs(a - b), 1e-6 * max(1, abs(a)))

    def test_two_ranks(self):
        self.compare(2)

    def test_three_ranks(self):
        self.compare(3)


def check_calls(test, **environment):
    """Works and groups, right and wrong: torch_calls.py."""
    done = run(2, program("torch_calls.py"), **environment)
    for name in ("futures", "a_wait_that_is_too_short",
                 "a_call_that_is_too_late",
                 "a_barrier_that_says_who_is_missing",
                 "a_tensor_that_nobody_keeps", "a_dtype_that_does_not_exist",
                 "a_factor_before_the_sum", "a_child",
                 "a_group_that_goes_with_its_work", "an_end_for_all",
                 "a_second_life"):
        with test.subTest(name):
            test.assertEqual(done.stdout.count(name + ": as it should"), 2,
                             done.stdout + done.stderr)


class Faults:
    """What torch_faults.py says."""

    environment = {}

    def mismatch(self, kind, *lines, script=program("torch_faults.py")):
        """Both ranks fail, and say the lines of both."""
        done = run(2, script, kind, **self.environment)
        self.assertEqual(done.stdout.count("OAR_E_MISMATCH"), 2,
                         done.stdout + done.stderr)
        for line in lines:
            self.assertRegex(done.stdout, re.escape(line) + r"\b")

    def killed(self, kind, line):
        """The other rank says which one was killed, and soon."""
        with tempfile.TemporaryDirectory() as folder:
            done = run(2, program("torch_faults.py"), kind,
                       os.path.join(folder, "when"), **self.environment)
        found = re.search(r"\[0\] said after (\S+) s: .*(OAR_E_PEER: "
                          "rank 1 .*died.*)", done.stdout)
        self.assertIsNotNone(found, done.stdout + done.stderr)
        self.assertLess(float(found[1]), 2 * slow())
        self.assertRegex(found[2], re.escape(line) + r"\b")


class Without_a_compiler(Faults, Results):
    """The backend in Python alone: the same results and failures, slower."""

    def setUp(self):
        cache = tempfile.TemporaryDirectory()
        self.addCleanup(cache.cleanup)
        self.environment = {"CXX": "no-such-compiler",
                            "XDG_CACHE_HOME": cache.name}

    def compare(self, ranks):
        super().compare(ranks, **self.environment)

    def test_two_ranks(self):
        """Three are enough."""

    def test_it_says_what_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-c", "import oarsong.torch\n"
                 "oarsong.torch.share_memory()"], check=False,
                env=dict(os.environ, PATH=folder, XDG_CACHE_HOME=folder),
                capture_output=True, text=True, timeout=200)
        self.assertIn("there is no c++ and no ninja", done.stderr)
        self.assertIn("share_memory() needs the backend in C++", done.stderr)

    def test_it_says_that_our_headers_are_missing(self):
        """A library and a package that were copied without them."""
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "prefix/lib"))
            copy = shutil.copy(os.environ["OARSONG_LIBRARY"],
                               os.path.join(folder, "prefix/lib/"
                                            "liboarsong.so.0"))
            shutil.copytree(os.path.dirname(oarsong.torch.__file__),
                            os.path.join(folder, "python/oarsong"))
            done = subprocess.run(
                [sys.executable, "-c", "import oarsong.torch\n"
                 "print(oarsong.torch.__file__, oarsong.torch._extension)"],
                check=False, capture_output=True, text=True, timeout=200,
                env=dict(os.environ, XDG_CACHE_HOME=folder,
                         OARSONG_LIBRARY=copy,
                         PYTHONPATH=os.path.join(folder, "python")))
        self.assertEqual(done.stdout.split(), [os.path.join(
            folder, "python/oarsong/torch.py"), "None"], done.stderr)
        self.assertIn("there is no header of Oarsong beside " + copy,
                      done.stderr)
        self.assertNotIn("g++", done.stderr)

    def test_headers_of_a_prefix_with_a_folder_for_each_machine(self):
        with tempfile.TemporaryDirectory() as prefix:
            os.makedirs(os.path.join(prefix, "include/oarsong"))
            os.makedirs(os.path.join(prefix, "lib/x86_64-linux-gnu"))
            with open(os.path.join(prefix, "include/oarsong/oarsong.h"), "w"):
                pass
            with mock.patch.object(
                    oarsong.torch.lib, "path", os.path.join(
                        prefix, "lib/x86_64-linux-gnu/liboarsong.so.0")):
                found = [os.path.normpath(folder)
                         for folder in oarsong.torch._headers()]
        self.assertEqual(found, [os.path.join(prefix, "include")])

    def test_a_mismatch_names_both_lines(self):
        self.mismatch("mismatch", line_of("reduce"), line_of("broadcast"))

    def test_a_killed_rank_is_named(self):
        self.killed("kill", line_of("kill"))

    def test_what_programs_do(self):
        check_calls(self, **self.environment)


class Calls(unittest.TestCase):
    def test_what_programs_do(self):
        check_calls(self)


class Launchers(unittest.TestCase):
    def start(self, *words):
        return subprocess.run(
            [*words, program("torch_start.py")], capture_output=True,
            text=True, timeout=400, check=False)

    def check(self, done):
        self.assertEqual(done.stdout.count("of 2: 3"), 2,
                         done.stdout + done.stderr)

    @unittest.skipIf(torch.__version__.startswith("1.") and
                     sys.version_info >= (3, 11),
                     "torchrun of 1.13 does not run with this Python")
    def test_torchrun(self):
        torchrun = (sys.executable, "-m", "torch.distributed.run",
                    "--nproc_per_node=2")
        done = self.start(*torchrun, "--standalone")
        if "built without libuv" in done.stderr:  # as Debian's 2.14 is
            with tempfile.NamedTemporaryFile() as file, mock.patch.dict(
                    os.environ, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"):
                done = self.start(*torchrun, "--local_addr=127.0.0.1",
                                  "--rdzv_backend=c10d",
                                  "--rdzv_conf=store_type=file",
                                  "--rdzv_endpoint=" + file.name)
        self.check(done)

    @unittest.skipIf(shutil.which("mpirun") is None, "there is no mpirun")
    def test_mpirun(self):
        self.check(self.start("mpirun", "--allow-run-as-root",
                              "--oversubscribe", "-n", "2", sys.executable))

    @unittest.skipUnless(shutil.which("srun"), "there is no srun")
    def test_srun(self):
        done = self.start("srun", "--overcommit", "-n", "2", sys.executable)
        if done.returncode != 0 and re.search(
                "configuration source|slurm controller", done.stderr):
            self.skipTest("SLURM does not run here")
        self.check(done)

    def test_what_srun_says(self):
        """Two ranks with the variables of srun 26.05."""
        ranks = [subprocess.Popen(
            [sys.executable, program("torch_start.py")], text=True,
            stdout=subprocess.PIPE, env=dict(
                os.environ, SLURM_PROCID=str(rank), SLURM_NTASKS="2",
                SLURM_JOB_ID=str(os.getpid()), SLURM_STEP_ID="0",
                SLURM_LOCALID=str(rank), SLURM_NODEID="0",
                SLURM_STEP_NUM_NODES="1", SLURM_STEP_NODELIST="localhost",
                SLURM_LAUNCH_NODE_IPADDR="192.0.2.1"))  # a login node
            for rank in range(2)]
        said = [rank.communicate(timeout=400)[0] for rank in ranks]
        for text in said:
            self.assertIn("of 2: 3", text)

    def test_the_first_host_of_a_job(self):
        for hosts, first in (("node[003-7,12],login", "node003"),
                             ("a,b[1-2]", "a"), ("r[1-2]n[5,9]", "r1n5")):
            with mock.patch.dict(os.environ, SLURM_STEP_NUM_NODES="2",
                                 SLURM_STEP_NODELIST=hosts):
                self.assertEqual(oarsong.torch._first_host(), first)


class Training(unittest.TestCase):
    """PyTorch's own ways to train: torch_train.py says what is compared."""

    def train(self, name):
        done = run(2, program("torch_train.py"), name)
        if "skipped:" in done.stdout:
            self.skipTest(re.search("skipped: (.*)", done.stdout)[1])
        self.assertEqual(done.stdout.count(name + " is the same"), 2,
                         done.stdout + done.stderr)

    def test_mlp_as_over_gloo(self):
        self.train("mlp")

    def test_gpt_as_over_gloo(self):
        self.train("gpt")

    def test_batch_norm_over_all_ranks(self):
        self.train("syncbn")

    def test_optimizer_in_parts(self):
        self.train("zero")

    def test_parameters_in_parts(self):
        self.train("fsdp")


class Examples(unittest.TestCase):
    def example(self, name, wanted):
        done = run(2, os.path.join(EXAMPLES, name))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(wanted, done.stdout)

    def test_ddp(self):
        self.example("torch_ddp.py", "2 ranks, loss ")

    @unittest.skipIf([int(n) for n in torch.__version__.split(".")[:2]] <
                     [2, 6], "this PyTorch has no fully_shard")
    def test_fsdp(self):
        self.example("torch_fsdp.py",
                     "2 ranks have the parameters of one process")


@unittest.skipUnless(torch.cuda.is_available(), "there is no GPU")
class Gpu(unittest.TestCase):
    """Two ranks on one GPU."""

    def train(self, *words):
        done = run(2, *words, "cuda")
        self.assertEqual(done.stdout.count(" is the same"), 2,
                         done.stdout + done.stderr)

    def test_collectives(self):
        self.train(program("torch_cuda.py"))

    def test_training(self):
        for name in ("mlp", "gpt", "syncbn", "zero", "fsdp"):
            with self.subTest(name):
                self.train(program("torch_train.py"), name)


class Memory(unittest.TestCase):
    def test_tensors_in_shared_memory(self):
        done = run(2, program("torch_memory.py"))
        self.assertEqual(done.stdout.count("memory is shared"), 2,
                         done.stdout + done.stderr)


    def faults(self, **environment):
        done = subprocess.run([sys.executable, program("torch_steps.py")],
                              capture_output=True, text=True, timeout=400,
                              check=False, env=dict(os.environ, **environment))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return int(done.stdout)

    def test_steps_find_the_memory_of_earlier_ones(self):
        self.assertLess(self.faults(), 10)

    @unittest.skipUnless(torch.__version__.startswith("1."),
                         "PyTorch 2.14 of sid makes no faults either way")
    def test_thresholds_in_the_environment_are_kept(self):
        self.assertGreater(self.faults(MALLOC_TRIM_THRESHOLD_="131072"), 100)


class Failures(Faults, unittest.TestCase):
    def test_a_mismatch_names_both_lines(self):
        self.mismatch("mismatch", line_of("reduce"), line_of("broadcast"))

    def test_a_script_in_a_folder_of_our_name_has_lines(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "oarsong"))
            script = shutil.copy(program("torch_faults.py"),
                                 os.path.join(folder, "oarsong/train.py"))
            self.mismatch("mismatch", line_of("reduce", "train.py"),
                          line_of("broadcast", "train.py"), script=script)

    def test_a_mismatch_in_a_backward_pass_names_both_lines(self):
        self.mismatch("backward_mismatch", line_of("backward"),
                      line_of("other call"))

    def test_a_thread_of_autograd_has_the_line_of_its_backward_pass(self):
        self.mismatch("backward_nested", line_of("nested"),
                      line_of("other call"))

    def test_a_killed_rank_is_named(self):
        self.killed("kill", line_of("kill"))

    def test_a_rank_that_is_killed_in_its_backward_pass_is_named(self):
        self.killed("backward_kill", line_of("backward kill"))

    def test_wrong_calls_leave_the_group_as_it_was(self):
        done = run(2, program("torch_faults.py"), "wrong")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        texts = ["complex tensors", "3 rows do not go into 2"]
        if torch.__version__.startswith("1."):
            texts.append("to_dense")  # later ones refuse it themselves
        for text in texts:
            self.assertEqual(done.stdout.count(text), 2, done.stdout)


if __name__ == "__main__":
    # The extension is compiled once, before ranks want it.
    import oarsong.torch
    if oarsong.torch._extension is None:
        sys.exit(77)
    unittest.main(verbosity=2)
