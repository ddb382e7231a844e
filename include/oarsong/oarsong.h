/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong.h: all of Oarsong. Each of these compiles alone, too. */
#ifndef OARSONG_OARSONG_H
#define OARSONG_OARSONG_H

/* what everything stands on */
#include <oarsong/export.h>
#include <oarsong/version.h>
#include <oarsong/status.h>
#include <oarsong/log.h>
#include <oarsong/memory.h>
#include <oarsong/span.h>
#include <oarsong/shared.h>
#include <oarsong/device.h>
#include <oarsong/replay.h>

/* ranks: knows spans, not tensors */
#include <oarsong/store.h>
#include <oarsong/group.h>
#include <oarsong/window.h>
#include <oarsong/work.h>
#include <oarsong/collective.h>
#include <oarsong/p2p.h>
#include <oarsong/backend.h>
#include <oarsong/nccl.h>
#include <oarsong/autopsy.h>
#include <oarsong/live.h>
#include <oarsong/recorder.h>
#include <oarsong/launch.h>

/* tensors: know no ranks */
#include <oarsong/tensor.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>
#include <oarsong/trace.h>
#include <oarsong/trace_read.h>
#include <oarsong/custom_op.h>
#include <oarsong/module.h>
#include <oarsong/layers.h>
#include <oarsong/optim.h>
#include <oarsong/models.h>
#include <oarsong/data.h>
#include <oarsong/dlpack.h>
#include <oarsong/safetensors.h>
#include <oarsong/interchange.h>

/* both */
#include <oarsong/gpu.h>
#include <oarsong/reducer.h>
#include <oarsong/ddp.h>
#include <oarsong/syncbn.h>
#include <oarsong/mesh.h>
#include <oarsong/dtensor.h>
#include <oarsong/dtensor_ops.h>
#include <oarsong/schedule.h>
#include <oarsong/pipeline.h>
#include <oarsong/fsdp.h>
#include <oarsong/tensor_parallel.h>
#include <oarsong/shards.h>
#include <oarsong/parallel.h>
#include <oarsong/checkpoint.h>
#include <oarsong/rpc.h>

#endif
