#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package: every operation by ranks that are threads, and wrong use."""
import array
import ctypes
import gc
import os
import sys
import threading
import time
import unittest

import oarsong as oar
from oarsong import _abi

try:
    import numpy
except ImportError:
    numpy = None

FORMATS = {"f32": "f", "f64": "d", "i8": "b", "u8": "B", "i16": "h",
           "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q"}
RANKS = (1, 2, 3)


def made(name, values):
    return array.array(FORMATS[name], values)


class Layout(unittest.TestCase):
    def test_structs_have_the_size_that_the_compiler_gives_them(self):
        for name, size in _abi.SIZES.items():
            self.assertEqual(ctypes.sizeof(getattr(_abi, name)), size, name)

    def test_every_function_is_in_the_library(self):
        for name in _abi.FUNCTIONS:
            self.assertTrue(callable(getattr(oar.lib, name)), name)

    def test_a_function_that_does_not_exist_is_named(self):
        with self.assertRaisesRegex(AttributeError, "oar_nothing"):
            oar.lib.oar_nothing


class Collectives(unittest.TestCase):
    """What each rank should get is computed here, element by element."""

    def each(self, body):
        for ranks in RANKS:
            with self.subTest(ranks=ranks):
                oar.simulate(ranks, body)

    def test_operators(self):
        def body(g):
            n = g.size
            for op, expected in (("max", n), (oar.MIN, 1),
                                 (oar.AVG, (n + 1) / 2),
                                 (oar.premul_sum(2), n * (n + 1))):
                a = made("f64", [g.rank + 1])
                g.all_reduce(a, op)
                self.assertEqual(a[0], expected)
            a = made("f64", [g.rank + 1])
            g.all_reduce(a, oar.WEIGHTED_MEAN, weight=float(g.rank))
            weights = sum(range(n))
            self.assertEqual(a[0], sum(r * (r + 1) for r in range(n)) / weights
                             if weights else 0)
        self.each(body)

    def test_out_of_place_leaves_the_input(self):
        def body(g):
            a, out = made("i32", [g.rank, 5]), made("i32", [0, 0])
            g.all_reduce(a, out=out)
            self.assertEqual(list(a), [g.rank, 5])
            self.assertEqual(list(out), [sum(range(g.size)), 5 * g.size])
        self.each(body)

    def test_broadcast_and_reduce(self):
        def body(g):
            for root in range(g.size):
                a = made("i64", [g.rank, root])
                g.broadcast(a, root)
                self.assertEqual(list(a), [root, root])
                a = made("i64", [g.rank])
                g.reduce(a, root=root)
                self.assertEqual(a[0], sum(range(g.size)) if g.rank == root
                                 else g.rank)
        self.each(body)

    def test_gather_and_scatter(self):
        def body(g):
            n, last = g.size, g.size - 1
            out = made("i32", [0] * 2 * n) if g.rank == last else None
            g.gather(made("i32", [g.rank, 7]), out, root=last)
            if g.rank == last:
                self.assertEqual(list(out), [x for r in range(n)
                                             for x in (r, 7)])
            part = made("i32", [0])
            g.scatter(part, made("i32", range(n)) if g.rank == last else None,
                      root=last)
            self.assertEqual(part[0], g.rank)
        self.each(body)

    def test_ragged_parts(self):
        def body(g):
            n = g.size
            counts = [r + 1 for r in range(n)]
            mine = made("i32", [g.rank] * counts[g.rank])
            all_of_it = [r for r in range(n) for _ in range(counts[r])]
            out = made("i32", [0] * len(all_of_it))
            g.all_gather(mine, out, counts=counts)
            self.assertEqual(list(out), all_of_it)
            part = made("i32", [0] * counts[g.rank])
            g.reduce_scatter(out, part, counts=counts)
            self.assertEqual(list(part), [g.rank * n] * counts[g.rank])
        self.each(body)

    def test_all_to_all(self):
        def body(g):
            n = g.size
            out = made("i32", [0] * n)
            g.all_to_all(made("i32", [10 * g.rank + r for r in range(n)]), out)
            self.assertEqual(list(out), [10 * r + g.rank for r in range(n)])
        self.each(body)

    def test_a_batch_runs_at_its_end(self):
        def body(g):
            a, b = made("i32", [1]), made("i32", [2])
            with g.batch():
                g.all_reduce(a)
                g.all_reduce(b)
            self.assertEqual([a[0], b[0]], [g.size, 2 * g.size])
        self.each(body)

    def test_objects(self):
        def body(g):
            everyone = [{"rank": r, "text": "é" * r} for r in range(g.size)]
            mine = everyone[g.rank]
            self.assertEqual(g.all_gather_object(mine), everyone)
            gathered = g.gather_object(mine, root=g.size - 1)
            self.assertEqual(gathered,
                             everyone if g.rank == g.size - 1 else None)
            self.assertEqual(g.broadcast_object(mine), everyone[0])
            self.assertEqual(
                g.scatter_object(everyone if g.rank == 0 else None), mine)
        self.each(body)

    def test_groups_of_a_group(self):
        def body(g):
            half = g.split(g.rank % 2)
            a = made("i32", [g.rank])
            half.all_reduce(a)
            self.assertEqual(a[0], sum(range(g.rank % 2, g.size, 2)))
            self.assertEqual(half.to_world(half.rank), g.rank)
            self.assertIsNone(g.split(-1))
            with g.dup("again") as again:
                self.assertIn("again", again.name)
            if g.rank == 0:
                with g.subset([0]) as alone:
                    self.assertEqual(alone.size, 1)
            half.close()
        self.each(body)


class Messages(unittest.TestCase):
    def test_send_and_receive(self):
        def body(g):
            if g.rank == 0:
                g.send(made("i32", [1, 2, 3]), 1, tag=9)
            else:
                a = made("i32", [0] * 3)
                message = g.recv(a, tag=9)
                self.assertEqual(list(a), [1, 2, 3])
                self.assertEqual((message.source, message.tag, message.bytes),
                                 (0, 9, 12))
        oar.simulate(2, body)

    def test_a_message_of_at_most_so_many_bytes(self):
        def body(g):
            if g.rank == 0:
                g.send(b"short", 1)
            else:
                room = bytearray(100)
                message = g.recv(room, at_most=1)
                self.assertEqual(room[:message.bytes], b"short")
        oar.simulate(2, body)

    def test_a_probe_finds_what_waits(self):
        def body(g):
            if g.rank == 0:
                g.send(made("u8", [1]), 1, tag=5)
            else:
                message = g.probe(timeout=30)
                self.assertEqual((message.source, message.tag), (0, 5))
                g.recv(made("u8", [0]), message.source, message.tag)
                self.assertIsNone(g.probe())
            g.barrier()
        oar.simulate(2, body)

    def test_a_ring(self):
        def body(g):
            into = made("i32", [0])
            g.sendrecv(made("i32", [g.rank]), (g.rank + 1) % g.size, into,
                       (g.rank - 1) % g.size)
            self.assertEqual(into[0], (g.rank - 1) % g.size)
        oar.simulate(3, body)


class Works(unittest.TestCase):
    def test_works_are_waited_for_in_any_order(self):
        def body(g):
            arrays = [made("i32", [i]) for i in range(5)]
            works = [g.all_reduce(a, wait=False) for a in arrays]
            oar.wait_all(reversed(works))
            self.assertEqual([a[0] for a in arrays],
                             [i * g.size for i in range(5)])
            self.assertTrue(all(w.done() for w in works))
        oar.simulate(2, body)

    def test_a_receive_that_is_not_kept_holds_its_memory(self):
        def body(g):
            a = made("i32", [0] * 1000)
            if g.rank == 1:
                g.recv(a, 0, wait=False)  # nothing refers to the work
                gc.collect()
                with self.assertRaises(BufferError):
                    a.append(1)  # a resize would free the memory
            g.barrier()
            if g.rank == 0:
                g.send(made("i32", [7] * 1000), 1)
            g.barrier()
            deadline = time.monotonic() + 60
            while g.rank == 1 and a[0] != 7 and time.monotonic() < deadline:
                time.sleep(0.001)
            self.assertEqual(a[0], 7 if g.rank == 1 else 0)
        oar.simulate(2, body)

    def test_then_runs_once_it_is_done(self):
        def body(g):
            seen, over = [], threading.Event()
            work = g.all_reduce(made("i32", [1]), wait=False)
            work.then(lambda error: (seen.append(error), over.set()))
            work.wait()
            self.assertTrue(over.wait(60))
            self.assertEqual(seen, [None])
        oar.simulate(2, body)

    def test_then_is_told_why_it_failed(self):
        def body(g):
            seen, over = [], threading.Event()
            work = g.all_reduce(made("f32", [1] * (g.rank + 1)), wait=False)
            work.then(lambda error: (seen.append(error), over.set()))
            self.assertTrue(over.wait(60))
            self.assertEqual(seen[0].status, "OAR_E_MISMATCH")
            return True
        self.assertTrue(all(oar.simulate(2, body)))

    def test_wait_any_says_which(self):
        def body(g):
            if g.rank == 0:
                g.send(made("i32", [1]), 1, tag=2)
                g.barrier()
                g.send(made("i32", [1]), 1, tag=1)
            else:
                a, b = made("i32", [0]), made("i32", [0])
                works = [g.recv(a, 0, tag=1, wait=False),
                         g.recv(b, 0, tag=2, wait=False)]
                self.assertEqual(oar.wait_any(works), 1)
                self.assertEqual(works[1].message.tag, 2)
                g.barrier()
                works[0].wait()
        oar.simulate(2, body)

    def test_a_receive_can_be_cancelled(self):
        def body(g):
            work = g.recv(made("i32", [0]), 1 - g.rank, tag=77, wait=False)
            self.assertTrue(work.cancel())
            g.barrier()
        oar.simulate(2, body)

    def test_a_timeout_of_wait_ends_nothing(self):
        def body(g):
            work = g.recv(a := made("i32", [0]), 1 - g.rank, wait=False)
            with self.assertRaises(TimeoutError):
                work.wait(timeout=0.01)
            g.barrier()
            g.send(made("i32", [g.rank + 1]), 1 - g.rank)
            work.wait()
            self.assertEqual(a[0], 2 - g.rank)
        oar.simulate(2, body)

    def test_a_closed_group_closes_its_works(self):
        def body(g):
            other = g.dup()
            work = other.recv(made("i32", [0]), 1 - g.rank, wait=False)
            g.barrier()
            other.close()
            with self.assertRaisesRegex(ValueError, "closed"):
                work.wait()
            with self.assertRaisesRegex(ValueError, "closed"):
                other.barrier()
        oar.simulate(2, body)


def line_of(mark):
    with open(__file__) as file:
        for number, line in enumerate(file, 1):
            if line.rstrip().endswith("# " + mark):
                return f"{os.path.basename(__file__)}:{number}"


class Failures(unittest.TestCase):
    def test_ranks_that_differ_are_told_both_lines(self):
        def body(g):
            if g.rank == 0:
                g.all_reduce(made("f32", [1]))  # mark: reduce
            else:
                g.barrier()  # mark: barrier
        with self.assertRaises(oar.MismatchError) as caught:
            oar.simulate(2, body)
        self.assertIn(line_of("mark: reduce"), caught.exception.text)
        self.assertIn(line_of("mark: barrier"), caught.exception.text)
        self.assertEqual(caught.exception.status, "OAR_E_MISMATCH")

    def test_a_span_is_reduced_with_the_line_of_its_call(self):
        def body(g):
            a = made("f32", [1, 2])
            span = oar.Span(a)
            g.all_reduce(span)
            g.all_reduce(span, oar.MAX)
            self.assertEqual(list(a), [g.size, 2 * g.size])
            if g.rank == 0:
                g.all_reduce(span)  # mark: span
            else:
                g.barrier()
        with self.assertRaises(oar.MismatchError) as caught:
            oar.simulate(2, body)
        self.assertIn(line_of("mark: span"), caught.exception.text)

    def test_a_span_in_a_group_that_is_closed(self):
        group = oar.create(None, 0, 1)
        group.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            group.all_reduce(oar.Span(made("f32", [1])))

    def test_a_label_is_in_the_text(self):
        def body(g):
            g.all_reduce(made("f32", [1] * (g.rank + 1)), label="grads")
        with self.assertRaisesRegex(oar.MismatchError, "grads"):
            oar.simulate(2, body)

    def test_what_a_rank_raises_ends_the_others(self):
        def body(g):
            if g.rank == 1:
                raise KeyError("lost")
            g.barrier()
        with self.assertRaisesRegex((KeyError, oar.Error), "lost|KeyError"):
            oar.simulate(3, body)

    def test_a_rank_that_does_not_exist(self):
        with self.assertRaisesRegex(oar.ArgumentError, "rank"):
            oar.simulate(2, lambda g: g.broadcast(made("f32", [1]), root=5))

    def test_the_fault_of_a_group(self):
        def body(g):
            self.assertIsNone(g.fault())
            g.abort("enough")
            self.assertIn("enough", str(g.fault()))
        with self.assertRaises(oar.Error):
            oar.simulate(1, lambda g: (body(g), g.barrier()))

    def test_options_that_do_not_exist(self):
        def body(g):
            with self.assertRaisesRegex(TypeError, "tiemout"):
                g.barrier(tiemout=3)
            with self.assertRaisesRegex(ValueError, "median"):
                g.all_reduce(made("f32", [1]), "median")
            with self.assertRaisesRegex(ValueError, "2 counts for 1"):
                g.all_gather(made("f32", [1]), made("f32", [1]), counts=[1, 0])
        oar.simulate(1, body)

    def test_groups_do_not_work_in_a_child(self):
        group = oar.create(None, 0, 1)
        pid = os.fork()
        if pid == 0:
            try:
                group.barrier()
            except oar.Error as error:
                os._exit(3 if error.status == "OAR_E_STATE" else 4)
            os._exit(5)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 3)
        group.barrier()
        group.close()


class Memory(unittest.TestCase):
    def setUp(self):
        self.group = oar.create(None, 0, 1)

    def tearDown(self):
        self.group.close()

    def test_read_only_memory_is_sent_and_not_written(self):
        self.group.broadcast(b"abc")
        with self.assertRaisesRegex(oar.ArgumentError, "read"):
            self.group.all_reduce(b"abc")

    def test_what_gives_no_memory(self):
        for wrong in (5, "text", None, [1.0, 2.0], object()):
            with self.assertRaises(TypeError):
                self.group.all_reduce(wrong)

    def test_memory_that_is_not_contiguous(self):
        with self.assertRaisesRegex(ValueError, "contiguous"):
            self.group.all_reduce(memoryview(bytearray(8))[::2])

    def test_elements_without_a_dtype(self):
        class Pair(ctypes.Structure):
            _fields_ = [("a", ctypes.c_int), ("b", ctypes.c_int)]
        with self.assertRaisesRegex(TypeError, "u8"):
            self.group.all_reduce((Pair * 2)())

    def test_a_span_is_held_and_let_go(self):
        a = bytearray(16)
        span = oar.Span(a, "f32")
        self.assertEqual((span.count, span.dtype), (4, "f32"))
        self.group.all_reduce(span)
        with self.assertRaises(BufferError):
            a.extend(b"x")
        part = span.part(1, 2)
        del span
        with self.assertRaises(BufferError):
            a.extend(b"x")
        del part
        a.extend(b"x")

    def test_wrong_views(self):
        with self.assertRaisesRegex(ValueError, "f33"):
            oar.Span(bytearray(4), "f33")
        with self.assertRaisesRegex(ValueError, "whole number"):
            oar.Span(bytearray(3), "bf16")
        with self.assertRaisesRegex(ValueError, "elements 1 to 5"):
            oar.Span(bytearray(4)).part(1, 4)

    def test_calls_leave_no_references(self):
        a = array.array("f", [1.0])
        before = sys.getrefcount(a)
        for _ in range(100):
            self.group.all_reduce(a)
            self.group.all_reduce(a, wait=False).wait()
        self.assertEqual(sys.getrefcount(a), before)
        a.append(2.0)

    def test_shared_memory(self):
        memory = oar.shared_array(8192)
        view = memoryview(memory)
        self.assertEqual(len(view), 8192)
        self.assertTrue(oar.lib.oar_shared_reachable(
            ctypes.addressof(memory), 8192))
        self.group.all_reduce(oar.Span(memory, "f32"))

    @unittest.skipIf(numpy is None, "there is no numpy")
    def test_numpy(self):
        for dtype in ("float32", "float64", "float16", "int8", "uint8",
                      "int16", "uint16", "int32", "uint32", "int64", "uint64",
                      "bool"):
            a = numpy.ones((2, 3), dtype)
            self.group.all_reduce(a)
            self.assertTrue((a == 1).all(), dtype)
        with self.assertRaisesRegex(ValueError, "contiguous"):
            self.group.all_reduce(numpy.ones((4, 4))[:, 1])
        with self.assertRaisesRegex(TypeError, "u8"):
            self.group.all_reduce(numpy.ones(2, "complex64"))
        with self.assertRaisesRegex(TypeError, "u8"):
            self.group.all_reduce(numpy.ones(2, ">f4"))
        self.group.all_reduce(numpy.ones((0, 5), "float32"))
        self.group.all_reduce(numpy.array(3.0))


class Stores(unittest.TestCase):
    def test_a_store_in_memory(self):
        with oar.Store.memory() as store:
            self.check(store)
        with self.assertRaisesRegex(ValueError, "closed"):
            store.set("a", b"")

    def test_a_store_that_is_served(self):
        with oar.StoreServer() as server:
            with oar.Store.tcp(server.address) as store:
                self.check(store)
                inner = oar.Store.prefix(store, "job/")
                inner.set("a", "x")
                self.assertEqual(store.get("job/a"), b"x")
                inner.close()

    def check(self, store):
        store.set("a", "one")
        self.assertEqual(store.get("a"), b"one")
        self.assertEqual(store.add("n", 5), 5)
        self.assertEqual(store.add("n", -2), 3)
        self.assertFalse(store.compare_set("a", b"two", b"three"))
        self.assertTrue(store.compare_set("a", b"one", b"three"))
        self.assertTrue(store.compare_set("new", None, b"\0\xff"))
        self.assertEqual(store.get("new"), b"\0\xff")
        store.wait(["a", "n"])
        self.assertEqual(store.keys(), ["a", "n", "new"])
        store.delete("a")
        with self.assertRaises(oar.NotFoundError):
            store.delete("a")
        with self.assertRaisesRegex(TimeoutError, "gone"):
            store.get("gone", timeout=0)
        store.clear()
        self.assertEqual(store.keys(), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
