#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The cells of conformance from Python: every collective, dtype and operator,
for several sizes, against results that are computed here element by element.
The ranks are threads, then processes over shared memory and over TCP
(conform_test.py rank: one of them). Then what a user gets wrong: always a
sentence, never a crash."""
import array
import os
import struct
import subprocess
import sys
import unittest

import oarsong as oar

try:
    import numpy
except ImportError:
    numpy = None

COMMAND = os.path.join(os.environ["OARSONG_BUILD_DIR"], "bin/oarsong")
group = None  # of this rank, where it is a process
WHOLE = {"i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I",
         "i64": "q", "u64": "Q"}
FORMATS = dict(WHOLE, f32="f", f64="d")
COUNTS = (0, 1, 7, 1025)
RANKS = (2, 3)
FOLDS = {"sum": lambda a, b: a + b, "prod": lambda a, b: a * b, "min": min,
         "max": max, "band": lambda a, b: a & b, "bor": lambda a, b: a | b,
         "bxor": lambda a, b: a ^ b}


def value(rank, i):
    """What rank has at i: small, so that no dtype overflows."""
    return (rank + i) % 3 + 1


def values(rank, count):
    return [value(rank, i) for i in range(count)]


def folded(op, ranks, count):
    """The result of a reduction, by hand."""
    if op == "avg":
        return [sum(value(r, i) for r in range(ranks)) / ranks
                for i in range(count)]
    out = values(0, count)
    for r in range(1, ranks):
        out = [FOLDS[op](a, value(r, i)) for i, a in enumerate(out)]
    return out


def bf16(numbers):
    """Returns the upper halves of floats."""
    return array.array("H", [struct.unpack("=I", struct.pack("=f", x))[0] >> 16
                             for x in numbers])


def cells():
    """Every dtype with the operators that it knows."""
    for dtype in FORMATS:
        for op in ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor"):
            if dtype in WHOLE and op == "avg":
                continue
            if dtype not in WHOLE and op in ("band", "bor", "bxor"):
                continue
            yield dtype, op


class Cells(unittest.TestCase):
    def each(self, body):
        if group is not None:
            body(group)
            return
        for ranks in RANKS:
            with self.subTest(ranks=ranks):
                oar.simulate(ranks, body)

    def same(self, what, found, wanted, dtype):
        wanted = list(array.array(FORMATS[dtype], wanted))
        self.assertEqual(list(found), wanted, what)

    def test_all_reduce(self):
        def body(g):
            for dtype, op in cells():
                for n in COUNTS:
                    a = array.array(FORMATS[dtype], values(g.rank, n))
                    g.all_reduce(a, op)
                    wanted = folded(op, g.size, n)
                    if op == "avg":
                        for x, y in zip(a, wanted):
                            self.assertAlmostEqual(x, y, 6)
                        continue
                    self.same((dtype, op, n), a, wanted, dtype)
        self.each(body)

    def test_reduce(self):
        def body(g):
            for dtype, op in cells():
                if op == "avg":
                    continue
                root = g.size - 1
                a = array.array(FORMATS[dtype], values(g.rank, 7))
                g.reduce(a, op, root=root)
                self.same((dtype, op), a, folded(op, g.size, 7) if
                          g.rank == root else values(g.rank, 7), dtype)
        self.each(body)

    def test_reduce_scatter(self):
        def body(g):
            for dtype, op in cells():
                if op == "avg":
                    continue
                for n in (0, 1, 5):
                    a = array.array(FORMATS[dtype], values(g.rank, n * g.size))
                    out = array.array(FORMATS[dtype], [0] * n)
                    g.reduce_scatter(a, out, op)
                    whole = folded(op, g.size, n * g.size)
                    self.same((dtype, op, n), out,
                              whole[g.rank * n:(g.rank + 1) * n], dtype)
        self.each(body)

    def test_what_moves_and_does_not_reduce(self):
        def body(g):
            for dtype, letter in FORMATS.items():
                for n in COUNTS:
                    self.moves(g, dtype, letter, n)
        self.each(body)

    def moves(self, g, dtype, letter, n):
        size, rank = g.size, g.rank

        def made(numbers):
            return array.array(letter, numbers)
        everyone = [x for r in range(size) for x in values(r, n)]
        a = made(values(rank, n))
        g.broadcast(a, size - 1)
        self.same(("broadcast", n), a, values(size - 1, n), dtype)
        out = made([0] * n * size)
        g.all_gather(made(values(rank, n)), out)
        self.same(("all_gather", n), out, everyone, dtype)
        out = made([0] * n * size) if rank == 0 else None
        g.gather(made(values(rank, n)), out)
        if rank == 0:
            self.same(("gather", n), out, everyone, dtype)
        out = made([0] * n)
        g.scatter(out, made(everyone) if rank == 0 else None)
        self.same(("scatter", n), out, values(rank, n), dtype)
        out = made([0] * n * size)
        g.all_to_all(made([x for r in range(size)
                           for x in values(rank + r, n)]), out)
        self.same(("all_to_all", n), out,
                  [x for r in range(size) for x in values(r + rank, n)], dtype)
        out = made([0] * n)
        g.sendrecv(made(values(rank, n)), (rank + 1) % size, out,
                   (rank - 1) % size)
        self.same(("sendrecv", n), out, values((rank - 1) % size, n), dtype)

    def test_parts_of_different_sizes(self):
        def body(g):
            for dtype, letter in FORMATS.items():
                for scale in (1, 300):
                    self.ragged(g, dtype, letter, scale)
        self.each(body)

    def ragged(self, g, dtype, letter, scale):
        counts = [3 * r % 5 * scale for r in range(g.size)]  # 0, 3, 1
        total, mine = sum(counts), counts[g.rank]
        before = sum(counts[:g.rank])

        def made(numbers):
            return array.array(letter, numbers)
        everyone = [x for r, n in enumerate(counts) for x in values(r, n)]
        out = made([0] * total)
        g.all_gather(made(values(g.rank, mine)), out, counts)
        self.same(("all_gather", counts), out, everyone, dtype)
        root = g.rank == 1
        out = made([0] * total) if root else None
        g.gather(made(values(g.rank, mine)), out, 1, counts if root else None,
                 ragged=True)
        if root:
            self.same(("gather", counts), out, everyone, dtype)
        out = made([0] * mine)
        g.scatter(out, made(everyone) if root else None, 1,
                  counts if root else None, ragged=True)
        self.same(("scatter", counts), out, values(g.rank, mine), dtype)
        g.reduce_scatter(made(values(g.rank, total)), out, counts=counts)
        self.same(("reduce_scatter", counts), out,
                  folded("sum", g.size, total)[before:before + mine], dtype)
        out = made([0] * mine * g.size)
        g.all_to_all(made(values(g.rank, total)), out, counts, [mine] * g.size)
        self.same(("all_to_all", counts), out,
                  [x for r in range(g.size)
                   for x in values(r, total)[before:before + mine]], dtype)

    def test_operations_that_go_on_by_themselves(self):
        def body(g):
            for dtype, letter in FORMATS.items():
                self.several_at_once(g, dtype, letter)
        self.each(body)

    def several_at_once(self, g, dtype, letter):
        before, after = (g.rank - 1) % g.size, (g.rank + 1) % g.size
        sums = [array.array(letter, values(g.rank, n)) for n in COUNTS]
        lists = [array.array(letter, [0] * n * g.size) for n in COUNTS]
        got = [array.array(letter, [0] * n) for n in COUNTS]
        works = [g.recv(a, before, wait=False) for a in got]
        for n, a, out in zip(COUNTS, sums, lists):
            mine = array.array(letter, values(g.rank, n))
            works += [g.all_reduce(a, wait=False),
                      g.send(mine, after, wait=False),
                      g.all_gather(mine, out, wait=False)]
        oar.wait_all(works)
        for n, a, out, b in zip(COUNTS, sums, lists, got):
            self.same(("all_reduce", n), a, folded("sum", g.size, n), dtype)
            self.same(("all_gather", n), out,
                      [x for r in range(g.size) for x in values(r, n)], dtype)
            self.same(("recv", n), b, values(before, n), dtype)

    def test_batches(self):
        def body(g):
            for dtype, letter in FORMATS.items():
                self.batched(g, dtype, letter)
        self.each(body)

    def batched(self, g, dtype, letter):
        """Every kind of call and several counts in one batch; nothing is there
        before its end."""
        def made(numbers):
            return array.array(letter, numbers)
        before, after = (g.rank - 1) % g.size, (g.rank + 1) % g.size
        sums = [made(values(g.rank, n)) for n in COUNTS]
        rows = [made([0] * n * g.size) for n in COUNTS]
        parts = [made([0] * n) for n in COUNTS]
        copies = [made(values(g.rank, n)) for n in COUNTS]
        got = [made([0] * n) for n in COUNTS]
        with g.batch():
            for n, s, row, part, copy, b in zip(COUNTS, sums, rows, parts,
                                                copies, got):
                g.all_reduce(s, "max")
                g.all_gather(made(values(g.rank, n)), row)
                g.reduce_scatter(made(values(g.rank, n * g.size)), part)
                g.broadcast(copy, 1)
                g.recv(b, before, tag=n)
                g.send(made(values(g.rank, n)), after, tag=n)
                self.assertEqual(s, made(values(g.rank, n)))
        for n, s, row, part, copy, b in zip(COUNTS, sums, rows, parts, copies,
                                            got):
            self.same(("all_reduce", n), s, folded("max", g.size, n), dtype)
            self.same(("all_gather", n), row,
                      [x for r in range(g.size) for x in values(r, n)], dtype)
            self.same(("reduce_scatter", n), part,
                      folded("sum", g.size, n * g.size)[g.rank * n:
                                                        (g.rank + 1) * n],
                      dtype)
            self.same(("broadcast", n), copy, values(1, n), dtype)
            self.same(("recv", n), b, values(before, n), dtype)

    def test_bf16_by_its_name(self):
        def body(g):
            for op in ("sum", "min", "max", "prod"):
                for n in COUNTS:
                    a = bf16(values(g.rank, n))
                    g.all_reduce(oar.Span(a, "bf16"), op)
                    self.assertEqual(a, bf16(folded(op, g.size, n)), (op, n))
        self.each(body)

    @unittest.skipIf(numpy is None, "there is no numpy")
    def test_half_and_bool_as_numpy_has_them(self):
        def body(g):
            for op in ("sum", "min", "max", "prod"):
                for n in COUNTS:
                    a = numpy.array(values(g.rank, n), "float16")
                    g.all_reduce(a, op)
                    self.assertEqual(a.tolist(), folded(op, g.size, n))
            for op, fold in (("bor", any), ("band", all)):
                flags = [[(r + i) % 2 == 0 for i in range(9)]
                         for r in range(g.size)]
                a = numpy.array(flags[g.rank])
                g.all_reduce(a, op)
                self.assertEqual(a.tolist(), [fold(column)
                                              for column in zip(*flags)])
        self.each(body)

    def test_operators_that_a_dtype_does_not_know(self):
        def body(g):
            with self.assertRaises(oar.Error) as caught:
                g.all_reduce(array.array("f", [1.0]), "bxor")
            self.assertIn("f32", caught.exception.text)
        oar.simulate(1, body)


class Processes(unittest.TestCase):
    """The same cells between two processes."""

    def over(self, backend):
        done = subprocess.run(
            [COMMAND, "run", "-n", "2", "--backend", backend, sys.executable,
             os.path.abspath(__file__), "rank"], capture_output=True,
            text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for rank in range(2):
            self.assertRegex(done.stdout, rf"\[{rank}\] over {backend}\n")
            self.assertRegex(done.stderr, rf"\[{rank}\] OK\b")

    def test_over_shared_memory(self):
        self.over("shm")

    def test_over_tcp(self):
        self.over("tcp")


# Each of these runs in a process of its own: a crash is seen as one.
WRONG = {
    "a dtype that other ranks do not have": """
def body(g):
    g.all_reduce(array.array("f" if g.rank else "d", [1.0]))
oar.simulate(2, body)""",
    "a buffer too small for the others": """
def body(g):
    g.all_gather(array.array("i", [1]), array.array("i", [0]))
oar.simulate(2, body)""",
    "an array with gaps": """
oar.create(None, 0, 1).all_reduce(memoryview(bytearray(8))[::2])""",
    "a buffer that is freed while it is used": """
def body(g):
    a = bytearray(1 << 20)
    work = g.recv(a, 1 - g.rank, wait=False)
    try:
        a.clear()
    finally:
        work.cancel()
oar.simulate(2, body)""",
    "a group that is closed": """
g = oar.create(None, 0, 1)
g.close()
g.barrier()""",
    "a span of memory that was released": """
view = memoryview(bytearray(8))
view.release()
oar.create(None, 0, 1).all_reduce(view)""",
    "counts that do not add up": """
oar.create(None, 0, 1).reduce_scatter(array.array("i", [1, 2]),
                                      array.array("i", [0]), counts=[5])""",
    "a rank that is not there": """
oar.create(None, 0, 1).send(array.array("i", [1]), 3)""",
    "a group of the parent in a child": """
g = oar.create(None, 0, 1)
pid = os.fork()
if pid == 0:
    g.all_reduce(array.array("f", [1.0]))
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))""",
}


class Wrong(unittest.TestCase):
    def test_every_wrong_use_is_an_exception(self):
        for name, text in WRONG.items():
            with self.subTest(name):
                done = subprocess.run(
                    [sys.executable, "-c",
                     "import array, os, sys, oarsong as oar" + text],
                    capture_output=True, text=True, timeout=100, check=False)
                self.assertEqual(done.returncode, 1, done.stderr)
                last = done.stderr.strip().splitlines()[-1]
                self.assertRegex(last, r"^\S*(Error|Exception)\S*: \w+.* \w+")


if __name__ == "__main__":
    if sys.argv[1:] == ["rank"]:
        with oar.init(timeout=100) as group:
            print("over", group.backend, flush=True)
            ran = unittest.main(argv=sys.argv[:1], defaultTest="Cells",
                                exit=False)
        sys.exit(not ran.result.wasSuccessful())
    unittest.main(verbosity=2)
