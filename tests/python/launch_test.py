#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that are processes: the launcher, deaths, checkpoints, PyTorch."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

import oarsong as oar

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ["OARSONG_BUILD_DIR"]
COMMAND = os.path.join(BUILD, "bin/oarsong")

try:
    import torch
except ImportError:
    torch = None


def program(name):
    return os.path.join(HERE, "programs", name)


def run(*words, **fields):
    return subprocess.run(words, capture_output=True, text=True, timeout=240,
                          check=False, **fields)


class Launch(unittest.TestCase):
    def test_a_script_by_the_module_and_by_the_command(self):
        environment = dict(os.environ, OARSONG_PYTHON=sys.executable)
        for start in ((sys.executable, "-m", "oarsong.run"), (COMMAND, "run")):
            with self.subTest(start=start[-1]):
                done = run(*start, "-n", "3", program("hello.py"),
                           env=environment)
                self.assertEqual(done.returncode, 0, done.stderr)
                for rank in range(3):
                    self.assertIn(f"[{rank}] rank {rank} of 3: 6", done.stdout)

    def test_the_ranks_of_the_module_have_its_python(self):
        done = run(sys.executable, "-m", "oarsong.run", "-n", "1", "--",
                   program("hello.py"))
        self.assertEqual((done.returncode, done.stdout),
                         (0, "rank 0 of 1: 1\n"), done.stderr)

    def test_a_rank_that_is_killed_is_named_with_the_line(self):
        done = run(COMMAND, "run", "-n", "3", "--keep-going", sys.executable,
                   program("victim.py"))
        with open(program("victim.py")) as file:
            line = next(number for number, text in enumerate(file, 1)
                        if "where it is seen" in text)
        for rank in (0, 2):
            said = re.search(rf"\[{rank}\] peer 1 after ([0-9.]+) s: (.*)",
                             done.stdout)
            self.assertIsNotNone(said, done.stdout + done.stderr)
            busy = max(1, os.getloadavg()[0] / os.cpu_count())
            self.assertLess(float(said[1]), 2 * busy)
            self.assertIn("OAR_E_PEER", said[2])
        self.assertIn(f"victim.py:{line}", done.stdout + done.stderr)

    def test_the_function_of_a_work_closes_its_group(self):
        done = run(COMMAND, "run", "-n", "2", sys.executable,
                   program("last_work.py"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Checkpoints(unittest.TestCase):
    def test_what_a_training_has_saved(self):
        with tempfile.TemporaryDirectory() as folder:
            saved = os.path.join(folder, "run")
            done = run(os.path.join(BUILD, "examples/ddp_gpt"), "--steps", "2",
                       "--checkpoint", saved, cwd=folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.check(saved)

    def check(self, saved):
        newest = oar.checkpoint.generations(saved)[-1]
        self.assertTrue(newest.complete)
        with oar.checkpoint.Catalog(saved) as catalog:
            self.assertEqual(catalog.step, newest.step)
            self.assertEqual(len(list(catalog)), len(catalog))
            entry = next(e for e in catalog if e.section == "model")
            data = catalog.read_bytes(entry.name)
            self.assertEqual(len(data), entry.bytes)
            self.assertTrue(any(data))
            catalog.verify()
            with self.assertRaises(oar.NotFoundError):
                catalog.find(entry.name + "x")
        with self.assertRaises(oar.NotFoundError):
            oar.checkpoint.Catalog(saved + "/nowhere")


@unittest.skipIf(torch is None, "there is no PyTorch")
class Tensors(unittest.TestCase):
    """PyTorch's tensors, by DLPack."""

    def test_every_dtype_that_both_have(self):
        def body(group):
            for dtype in (torch.float32, torch.float64, torch.float16,
                          torch.bfloat16, torch.int8, torch.uint8, torch.int16,
                          torch.int32, torch.int64):
                a = torch.full((2, 3), group.rank + 1, dtype=dtype)
                group.all_reduce(a)
                self.assertTrue((a == 3).all(), dtype)
        oar.simulate(2, body)

    def test_tensors_with_gradients_and_views(self):
        with oar.create(None, 0, 1) as group:
            group.all_reduce(torch.ones(3, requires_grad=True))
            group.all_reduce(torch.ones(4, 4)[1:3])
            with self.assertRaisesRegex(ValueError, "contiguous"):
                group.all_reduce(torch.ones(4, 4)[:, 1])
            with self.assertRaisesRegex(TypeError, "u8"):
                group.all_reduce(torch.ones(2, dtype=torch.complex64))


if __name__ == "__main__":
    unittest.main(verbosity=2)
