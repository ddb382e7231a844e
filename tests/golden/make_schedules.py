#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes schedules.golden with the schedules of PyTorch 2.14 (Debian:
apt-get install python3-torch).

Each schedule is one line, "kind ranks micro chunks hash rows": the hash is
FNV-1a, 64 bits, of its text, a line for each rank. The text itself follows, in
so many rows, if it is short; else rows is 0. Idle cells and REDUCE_GRAD are
left out.

PyTorch counts the forwards of the last rank of 1F1B from 1 (its step does not:
only the order that it writes down); they are counted from 0 here.
"""
import pathlib

import torch
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.stage import _PipelineStageBase

SHORT = 24  # most actions of one act whose text is written


class Stage(_PipelineStageBase):
    """What the constructors of schedules ask of a stage."""

    def __init__(self, index, stages, ranks):
        self.stage_index, self.num_stages = index, stages
        self.group_size, self.group_rank, self.group = ranks, 0, None
        self.stage_index_to_group_rank = {i: i % ranks for i in range(stages)}
        self.submod, self.has_backward = None, True
        self.device = torch.device("cpu")

    def _create_grad_recv_info(self, *args, **kwargs):
        return {}

    def _prepare_forward_infra(self, *args, **kwargs):
        pass

    def _prepare_backward_infra(self, *args, **kwargs):
        pass


def order_of(kind, ranks, micro, chunks, v_shaped):
    """The rows of one of PyTorch's classes of schedules."""
    count = ranks * chunks
    if chunks == 1 and kind in (schedules.ScheduleGPipe, schedules.Schedule1F1B):
        return kind(Stage(0, count, ranks), micro)._get_pipeline_order()
    places = [0, count - 1] if v_shaped else range(0, count, ranks)
    stages = [Stage(i, count, ranks) for i in places]
    return kind(stages, micro, loss_fn=lambda a, b: a).pipeline_order


def actions_of(row, rank, last_of_1f1b):
    for action in row:
        if action is None or action.computation_type.value == "REDUCE_GRAD":
            continue
        text = str(action)
        if last_of_1f1b and f"{rank}F" in text:
            text = f"{rank}F{action.microbatch_index - 1}"
        yield text


def text_of(name, *args):
    rows = order_of(*args)
    return "".join(
        ",".join(actions_of(rows[rank], rank,
                            name == "1f1b" and rank == len(rows) - 1)) + "\n"
        for rank in sorted(rows))


def fnv(text):
    value = 0xcbf29ce484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return value


def cases():
    for ranks in (2, 3, 4, 8):
        for micro in range(1, 25):
            yield "gpipe", schedules.ScheduleGPipe, ranks, micro, 1, False
            if micro >= ranks:
                yield "1f1b", schedules.Schedule1F1B, ranks, micro, 1, False
            if micro % ranks == 0:
                for chunks in (1, 2, 3):
                    yield ("interleaved", schedules.ScheduleInterleaved1F1B,
                           ranks, micro, chunks, False)
                yield ("zb_h1", schedules.ScheduleInterleavedZeroBubble, ranks,
                       micro, 1, False)
            yield "zb_v", schedules.ScheduleZBVZeroBubble, ranks, micro, 2, True
            if micro >= 2 * ranks:
                yield ("dualpipe_v", schedules.ScheduleDualPipeV, ranks, micro,
                       2, True)


with open(pathlib.Path(__file__).with_name("schedules.golden"), "w",
          encoding="ascii") as file:
    for name, kind, ranks, micro, chunks, v_shaped in cases():
        text = text_of(name, kind, ranks, micro, chunks, v_shaped)
        short = ranks * micro * chunks <= SHORT
        file.write(f"{name} {ranks} {micro} {chunks} {fnv(text):016x}"
                   f" {ranks if short else 0}\n{text if short else ''}")
