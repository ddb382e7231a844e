#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over Oarsong: the same results as over gloo, and failures
that name the line. Ends with 77 where PyTorch, its headers or a compiler is
missing."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
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


def run(ranks, *words):
    return subprocess.run(
        [COMMAND, "run", "-n", str(ranks), "--keep-going", sys.executable,
         *words], capture_output=True, text=True, timeout=400, check=False)


def line_of(mark):
    with open(program("torch_faults.py")) as file:
        for number, line in enumerate(file, 1):
            if line.rstrip().endswith("# mark: " + mark):
                return f"torch_faults.py:{number}"


def flat(value):
    if isinstance(value, list):
        return [x for part in value for x in flat(part)]
    return [value]


class Results(unittest.TestCase):
    def compare(self, ranks):
        with tempfile.TemporaryDirectory() as folder:
            for backend in ("gloo", "oarsong"):
                done = run(ranks, program("torch_ranks.py"), backend, folder)
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
        if name != "trained":
            self.assertEqual(theirs, ours)
            return
        self.assertEqual(len(theirs), len(ours))
        for a, b in zip(theirs, ours):
            self.assertLess(abs(a - b), 1e-6 * max(1, abs(a)))

    def test_two_ranks(self):
        self.compare(2)

    def test_three_ranks(self):
        self.compare(3)


class Building(unittest.TestCase):
    def test_without_a_compiler_it_says_what_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-c", "import oarsong.torch"], check=False,
                env=dict(os.environ, PATH=folder, XDG_CACHE_HOME=folder),
                capture_output=True, text=True, timeout=200)
        self.assertIn("there is no c++ and no ninja", done.stderr)


class Launchers(unittest.TestCase):
    def start(self, *words):
        done = subprocess.run(
            [*words, program("torch_start.py")], capture_output=True,
            text=True, timeout=400, check=False)
        self.assertEqual(done.stdout.count("of 2: 3"), 2,
                         done.stdout + done.stderr)

    @unittest.skipIf(torch.__version__.startswith("1.") and
                     sys.version_info >= (3, 11),
                     "torchrun of 1.13 does not run with this Python")
    def test_torchrun(self):
        self.start(sys.executable, "-m", "torch.distributed.run",
                   "--standalone", "--nproc_per_node=2")

    @unittest.skipIf(shutil.which("mpirun") is None, "there is no mpirun")
    def test_mpirun(self):
        self.start("mpirun", "--allow-run-as-root", "--oversubscribe", "-n",
                   "2", sys.executable)


class Memory(unittest.TestCase):
    def test_tensors_in_shared_memory(self):
        done = run(2, program("torch_memory.py"))
        self.assertEqual(done.stdout.count("memory is shared"), 2,
                         done.stdout + done.stderr)


class Failures(unittest.TestCase):
    def test_a_mismatch_names_both_lines(self):
        done = run(2, program("torch_faults.py"), "mismatch")
        self.assertEqual(done.stdout.count("OAR_E_MISMATCH"), 2,
                         done.stdout + done.stderr)
        self.assertIn(line_of("reduce"), done.stdout)
        self.assertIn(line_of("broadcast"), done.stdout)

    def test_a_killed_rank_is_named(self):
        done = run(2, program("torch_faults.py"), "kill")
        self.assertRegex(done.stdout, r"\[0\] said: OAR_E_PEER: rank 1 .*died",
                         done.stdout + done.stderr)
        self.assertIn(line_of("kill"), done.stderr)

    def test_wrong_calls_leave_the_group_as_it_was(self):
        done = run(2, program("torch_faults.py"), "wrong")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for text in ("to_dense", "complex tensors", "3 rows do not go into 2"):
            self.assertEqual(done.stdout.count(text), 2, done.stdout)


if __name__ == "__main__":
    # The extension is compiled once, before ranks want it.
    import oarsong.torch
    unittest.main(verbosity=2)
