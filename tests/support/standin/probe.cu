// SPDX-License-Identifier: Apache-2.0
// standin/probe.cu: kernels for the tests of the stand-in itself.

struct probe_pair {
    const float *from;
    float *to;
};

#define INDEX  (blockIdx.x * blockDim.x + threadIdx.x)
#define STRIDE (gridDim.x * blockDim.x)

// to[i] = a * from[i] + b
extern "C" __global__ void probe_scale(float *to, const float *from, float a,
                                       float b, unsigned count)
{
    for (unsigned i = INDEX; i < count; i += STRIDE)
        to[i] = a * from[i] + b;
}

// The same with addresses in a struct.
extern "C" __global__ void __launch_bounds__(256)
    probe_copy(probe_pair pair, unsigned long long count)
{
    for (unsigned long long i = INDEX; i < count; i += STRIDE)
        pair.to[i] = pair.from[i];
}

#define PROBE_FILL(type)                                             \
    extern "C" __global__ void probe_fill_##type(type *to, type value) \
    {                                                                \
        to[INDEX] = value;                                           \
    }
PROBE_FILL(int)
PROBE_FILL(double)

// Every thread of a grid in three dimensions writes which one it is.
extern "C" __global__ void probe_place(unsigned *to)
{
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x +
                     blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x +
                      threadIdx.x;
    unsigned at = block * (blockDim.x * blockDim.y * blockDim.z) + thread;
    to[at] = at * 3 + 1;
}
