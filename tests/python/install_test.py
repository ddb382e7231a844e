#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The package as users install it, by pip without a network.
Ends with 77 where there is no pip."""
import os
import subprocess
import sys
import tempfile
import unittest

TREE = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
if subprocess.run([sys.executable, "-m", "pip", "--version"], check=False,
                  capture_output=True).returncode != 0:
    sys.exit(77)


class Install(unittest.TestCase):
    def use(self, folder):
        """Imports the package from a folder, and calls it there."""
        done = subprocess.run(
            [sys.executable, "-c", "import oarsong as oar, array\n"
             "a = array.array('f', [3.0])\n"
             "with oar.create(None, 0, 1) as g: g.all_reduce(a)\n"
             "print(oar.__file__, a[0])"], cwd="/", capture_output=True,
            text=True, timeout=100, check=False,
            env=dict(os.environ, PYTHONPATH=folder))
        self.assertEqual(done.stdout.split(),
                         [os.path.join(folder, "oarsong/__init__.py"), "3.0"],
                         done.stderr)
        there = os.listdir(os.path.join(folder, "oarsong"))
        for name in os.listdir(os.path.join(TREE, "python/oarsong")):
            if name != "__pycache__":
                self.assertIn(name, there)

    def test_pip(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-m", "pip", "install", "-q", "--no-index",
                 "--disable-pip-version-check", "--target", folder,
                 os.path.join(TREE, "python")], capture_output=True, text=True,
                timeout=300, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.use(folder)


if __name__ == "__main__":
    unittest.main(verbosity=2)
