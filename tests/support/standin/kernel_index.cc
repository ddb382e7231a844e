// SPDX-License-Identifier: Apache-2.0
// standin/kernel_index.cc: which thread of which block a kernel runs as.
#include "standin/kernel_shim.h"

thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;
