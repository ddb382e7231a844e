/* SPDX-License-Identifier: Apache-2.0 */
/* base/env_names.h: lists every OARSONG_ variable once. X(name, words): words
 * are the allowed values, in any case, separated by spaces; NULL: a text or a
 * number, which is checked where it is read. A name that ends in '*' stands for
 * all that begin so. scripts/check-environment compares this list with the
 * variables that the source reads and the documents describe. */
#ifndef OARI_BASE_ENV_NAMES_H
#define OARI_BASE_ENV_NAMES_H

#define OARI_YES_OR_NO "1 true yes on 0 false no off"

/* Variables that users set. */
#define OARI_ENV_SETTINGS(X)                                  \
    X("OARSONG_ALGO", NULL)                                   \
    X("OARSONG_BACKEND", NULL)                                \
    X("OARSONG_BLAS_THREADS", NULL)                           \
    X("OARSONG_BRUCK_RANKS", NULL)                            \
    X("OARSONG_CHAIN_BYTES", NULL)                            \
    X("OARSONG_CHUNK_BYTES", NULL)                            \
    X("OARSONG_CUBLASLT_LIBRARY", NULL)                       \
    X("OARSONG_CUDA_LIBRARY", NULL)                           \
    X("OARSONG_DNNL", "off auto bf16 all")                    \
    X("OARSONG_DNNL_LIBRARY", NULL)                           \
    X("OARSONG_EAGER_BYTES", NULL)                            \
    X("OARSONG_ENABLE_GPU_FALLBACK", OARI_YES_OR_NO)          \
    X("OARSONG_ENGINE_PARTS", NULL)                           \
    X("OARSONG_EXCHANGE_RANKS", NULL)                         \
    X("OARSONG_FETCH_BYTES", NULL)                            \
    X("OARSONG_GLOO_ALLGATHER", NULL)                         \
    X("OARSONG_GLOO_ALLREDUCE", NULL)                         \
    X("OARSONG_GLOO_ALLTOALL", NULL)                          \
    X("OARSONG_GLOO_BARRIER", NULL)                           \
    X("OARSONG_GLOO_BROADCAST", NULL)                         \
    X("OARSONG_GLOO_GATHER", NULL)                            \
    X("OARSONG_GLOO_REDUCE", NULL)                            \
    X("OARSONG_GLOO_REDUCE_SCATTER", NULL)                    \
    X("OARSONG_GLOO_SCATTER", NULL)                           \
    X("OARSONG_GLOO_THREADS", NULL)                           \
    X("OARSONG_GPU_CHECK", NULL)                              \
    X("OARSONG_GPU_FALLBACK_BYTES", NULL)                     \
    X("OARSONG_GPU_FALLBACK_THREADS", NULL)                   \
    X("OARSONG_HOST_ID", NULL)                                \
    X("OARSONG_ISA", "baseline avx2 avx512")                  \
    X("OARSONG_KERNELS", NULL)                                \
    X("OARSONG_LATENCY_BYTES", NULL)                          \
    X("OARSONG_LIBRARY", NULL)                                \
    X("OARSONG_LOG", "off error warn info debug")             \
    X("OARSONG_MPI", "openmpi mpich")                         \
    X("OARSONG_MPIRUN", NULL)                                 \
    X("OARSONG_MPI_BLOCKING", "0 1")                          \
    X("OARSONG_MPI_CHUNK", NULL)                              \
    X("OARSONG_NCCL_LIBRARY", NULL)                           \
    X("OARSONG_PAIR_BYTES", NULL)                             \
    X("OARSONG_PLUGIN_PATH", NULL)                            \
    X("OARSONG_PYTHON", NULL)                                 \
    X("OARSONG_RECORDER_DIR", NULL)                           \
    X("OARSONG_RING_BYTES", NULL)                             \
    X("OARSONG_SECRET", NULL)                                 \
    X("OARSONG_SECRET_FILE", NULL)                            \
    X("OARSONG_SHRINK", "majority any")                       \
    X("OARSONG_SMALL_BYTES", NULL)                            \
    X("OARSONG_SOCKET_FAMILY", "inet inet6 AF_INET AF_INET6") \
    X("OARSONG_SOCKET_IFNAME", NULL)                          \
    X("OARSONG_SPIN_US", NULL)                                \
    X("OARSONG_STAGE_BYTES", NULL)                            \
    X("OARSONG_STALL_MS", NULL)                               \
    X("OARSONG_STORE", NULL)                                  \
    X("OARSONG_SWAP_BYTES", NULL)                             \
    X("OARSONG_TCP_LEASE_MS", NULL)                           \
    X("OARSONG_TCP_SOCKETS", NULL)                            \
    X("OARSONG_TIMEOUT_MS", NULL)                             \
    X("OARSONG_TRACE", NULL)                                  \
    X("OARSONG_TRACE_BYTES", NULL)                            \
    X("OARSONG_TREE_BYTES", NULL)                             \
    X("OARSONG_TREE_RANKS", NULL)                             \
    X("OARSONG_TUNE_FILE", NULL)                              \
    X("OARSONG_TWO_LEVEL", NULL)                              \
    X("OARSONG_UCC_BF16", OARI_YES_OR_NO)                     \
    X("OARSONG_WEB_TOKEN", NULL)                              \
    X("OARSONG_WIRE", "auto plain auth tls")

/* Variables that `oarsong run` sets for its ranks. */
#define OARI_ENV_LAUNCHER(X)       \
    X("OARSONG_EPOCH", NULL)       \
    X("OARSONG_LOCAL_RANK", NULL)  \
    X("OARSONG_LOCAL_SIZE", NULL)  \
    X("OARSONG_NODE", NULL)        \
    X("OARSONG_NODES", NULL)       \
    X("OARSONG_RANK", NULL)        \
    X("OARSONG_RECORDER_FD", NULL) \
    X("OARSONG_RESPAWN", NULL)     \
    X("OARSONG_RUN_ID", NULL)      \
    X("OARSONG_SIZE", NULL)

/* Variables that the tests and scripts of this tree set. */
#define OARI_ENV_TESTS(X)            \
    X("OARSONG_BUILD_DIR", NULL)     \
    X("OARSONG_CLI_*", NULL)         \
    X("OARSONG_CONFORM_*", NULL)     \
    X("OARSONG_FUZZ*", NULL)         \
    X("OARSONG_SLURM_SECONDS", NULL) \
    X("OARSONG_SOURCE*", NULL)       \
    X("OARSONG_TEST_*", NULL)        \
    X("OARSONG_TIDY", NULL)

#define OARI_ENV_LIST(X) \
    OARI_ENV_SETTINGS(X) \
    OARI_ENV_LAUNCHER(X) \
    OARI_ENV_TESTS(X)

#endif
