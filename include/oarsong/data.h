/* SPDX-License-Identifier: Apache-2.0 */
/* data.h: data sets, how they are dealt to ranks, and a thread that reads
 * ahead. */
#ifndef OARSONG_DATA_H
#define OARSONG_DATA_H

#include <oarsong/tensor.h>

OAR_BEGIN_DECLS

/* ---- tokenizers ---------------------------------------------------------- */

typedef struct oar_tokenizer oar_tokenizer;

/* Every byte is a token: 256 of them. */
OAR_API oar_status oar_tokenizer_bytes(oar_tokenizer **tokenizer);
/* The characters (UTF-8) that occur in text, in the order of their code points;
 * malformed bytes are OAR_E_DATA, an empty text OAR_E_ARG. */
OAR_API oar_status oar_tokenizer_characters(const char *text, size_t bytes,
                                            oar_tokenizer **tokenizer);
/* Byte pairs, as GPT-2 has them, from vocab.json and merges.txt in Hugging
 * Face's format, at most 16 MiB each. Every text can be encoded, whatever its
 * bytes are, and decoding gives the same bytes again. "<|endoftext|>" in a text
 * is encoded as any other text is: its own token comes only from
 * oar_tokenizer_find. Where several pairs could be merged, the one of the
 * lowest rank is, of equal ones the first. OAR_E_DATA, with the file and what
 * is wrong: a token's number not one of 0 to count - 1 or there twice, a byte
 * without a token, a merge of or to something that is no token. */
OAR_API oar_status oar_tokenizer_bpe(const char *vocab_path,
                                     const char *merges_path,
                                     oar_tokenizer **tokenizer);
OAR_API void oar_tokenizer_destroy(oar_tokenizer *tokenizer); /* NULL: fine */
OAR_API int64_t oar_tokenizer_count(const oar_tokenizer *tokenizer);
/* Gives the tokens (oar_free them). A character without a token is OAR_E_DATA,
 * with its place. */
OAR_API oar_status oar_tokenizer_encode(const oar_tokenizer *tokenizer,
                                        const char *text, size_t bytes,
                                        int64_t **token, size_t *count);
/* Gives the token that stands for exactly this text; OAR_E_NOT_FOUND. */
OAR_API oar_status oar_tokenizer_find(const oar_tokenizer *tokenizer,
                                      const char *text, size_t bytes,
                                      int64_t *token);
/* Gives text that ends in a zero byte (oar_free it), and its bytes without that
 * (bytes may be NULL). A token that does not exist is OAR_E_DATA, with its
 * place. */
OAR_API oar_status oar_tokenizer_decode(const oar_tokenizer *tokenizer,
                                        const int64_t *token, size_t count,
                                        char **text, size_t *bytes);

/* ---- data sets: numbered samples ----------------------------------------- */

/* Does not change once made: any number of threads may read it. */
typedef struct oar_dataset oar_dataset;

/* Sample i is slice i of dim 0 of each tensor; takes references. 1 to 4
 * tensors with the same dim 0, of any strides, which nobody writes while a
 * batch is made (a loader's thread does that at any time). */
OAR_API oar_status oar_dataset_tensors(int count, oar_tensor *const *tensor,
                                       oar_dataset **dataset);

/* A file of tokens: u8, u16 or i32, little-endian, nothing else in it. Sample i
 * is tokens i*stride .. i*stride+length-1 and, as the target, the same one
 * later, both i64 [length]. stride 0 means length.
 * The file is mapped, so that all ranks of a host share its pages. It must not
 * become shorter while the data set lives: a batch first looks at its size, and
 * fails with OAR_E_STATE and both sizes if it has; but a truncation in the
 * middle of a batch is a SIGBUS, as for any mapping. To replace the file rename
 * another one over it: the old one stays as it was. OAR_E_DATA now: its size is
 * not a multiple of the token's, or less than one sample needs (length + 1
 * tokens). OAR_E_DATA from a batch: a token below zero. What is appended later
 * is not seen. */
OAR_API oar_status oar_dataset_tokens(const char *path, oar_dtype dtype,
                                      int64_t length, int64_t stride,
                                      oar_dataset **dataset);

typedef struct oar_tokens_opts {
    size_t size;
    int64_t stride;
    size_t header_bytes; /* before the first token, not looked at: 1024 in
                            files of llm.c. A multiple of the token's size */
} oar_tokens_opts;
OAR_OPTS_INIT(oar_tokens_opts);
/* The same with options; NULL: none. */
OAR_API oar_status oar_dataset_tokens_with(const char *path, oar_dtype dtype,
                                           int64_t length,
                                           const oar_tokens_opts *opts,
                                           oar_dataset **dataset);
OAR_API void oar_dataset_destroy(oar_dataset *dataset); /* NULL is fine */
OAR_API int64_t oar_dataset_count(const oar_dataset *dataset);
OAR_API int oar_dataset_fields(const oar_dataset *dataset);
/* Makes a batch of these samples: fields tensors, [count, ..] each, which the
 * caller owns. A sample that does not exist is OAR_E_ARG. */
OAR_API oar_status oar_dataset_batch(const oar_dataset *dataset, int64_t count,
                                     const int64_t *index, oar_tensor **field);

/* Gives a line of text (oar_free it) that tells data sets apart, so that a run
 * is not resumed on another one by mistake: what its samples are, how many
 * bytes, and a hash of its ends. Of a file these are its first and last 64 KiB
 * (the path does not count), of tensors their first and last 8 samples. Two
 * data sets that differ only between the ends have the same text. OAR_E_STATE
 * if the data is gone. */
OAR_API oar_status oar_dataset_identity(const oar_dataset *dataset,
                                        char **text);

/* ---- the distributed sampler --------------------------------------------- */

typedef struct oar_sampler_opts {
    size_t size;
    int no_shuffle;
    uint64_t seed;
} oar_sampler_opts;
OAR_OPTS_INIT(oar_sampler_opts);

/* The indices that a rank sees in an epoch: the data set, shuffled by seed and
 * epoch, filled up from its start to a multiple of ranks, every ranks-th from
 * rank on. So every rank sees the same number: samples / ranks, rounded up.
 * Gives them (oar_free). */
OAR_API oar_status oar_sampler_indices(int64_t samples, int rank, int ranks,
                                       uint64_t epoch,
                                       const oar_sampler_opts *opts,
                                       int64_t **index, int64_t *count);

/* ---- the loader ---------------------------------------------------------- */

typedef struct oar_loader oar_loader;
typedef struct oar_loader_opts {
    size_t size;
    int rank, ranks; /* ranks 0 means 1 */
    int64_t batch;   /* 0 means 1 */
    int ahead;       /* batches read ahead by a thread; 0 means 2, below 0: no
                        thread */
    int drop_last;   /* leave out a last batch that is not full */
    int no_shuffle;
    uint64_t seed;
    const oar_device *device; /* a GPU: batches are there; NULL: on the cpu.
                                 Only read by oar_loader_create */
} oar_loader_opts;
OAR_OPTS_INIT(oar_loader_opts);

/* Borrows the data set. The loader is one thread's at a time. If it has a
 * thread, a child of fork cannot use it (OAR_E_STATE), and destroying it there
 * does nothing. */
OAR_API oar_status oar_loader_create(const oar_dataset *dataset,
                                     const oar_loader_opts *opts,
                                     oar_loader **loader);
/* At any time: a batch that is being made is waited for. NULL is fine. */
OAR_API void oar_loader_destroy(oar_loader *loader);
/* Starts an epoch at a batch (0: the beginning). At any time, also in the
 * middle of another epoch. */
OAR_API oar_status oar_loader_start(oar_loader *loader, uint64_t epoch,
                                    int64_t batch);
OAR_API int64_t oar_loader_batches(const oar_loader *loader); /* an epoch */

/* Gives the epoch, and how many of its samples oar_loader_next has handed out
 * on all ranks together; what was read ahead does not count. It is the same on
 * all ranks that have taken as many batches. After the last batch it is the
 * number of samples of the data set, whatever was padded or left out; before
 * the first start, the beginning of epoch 0. */
OAR_API oar_status oar_loader_position(const oar_loader *loader,
                                       uint64_t *epoch, int64_t *sample);
/* Starts an epoch after that many samples, as oar_loader_start does. Batch k
 * from there on is, over all ranks, samples [k, k + 1) * ranks * batch of the
 * rest of the epoch's order, whatever rank takes which: so a run resumed with
 * another number of ranks sees the same rows in each step if ranks * batch is
 * the same. Only the last batch may differ: with more ranks more rows from the
 * epoch's start pad it, and with drop_last a batch that is full only by that
 * padding is left out on fewer ranks. OAR_E_ARG beyond the data set. */
OAR_API oar_status oar_loader_seek(oar_loader *loader, uint64_t epoch,
                                   int64_t sample);

/* The data set, borrowed; and the options with defaults filled in. The order of
 * an epoch follows from samples, seed and no_shuffle. */
OAR_API const oar_dataset *oar_loader_dataset(const oar_loader *loader);
OAR_API oar_status oar_loader_describe(const oar_loader *loader,
                                       oar_loader_opts *opts);
/* The next batch's fields, which the loader owns until the next call (retain
 * one to keep it: it is not used again then); *more is 0 at the end of the
 * epoch, and then no field is given. What went wrong in the thread is said
 * here, when its batch is due; the call after that tries the batch again.
 *
 * On a GPU the thread copies a batch through pinned memory on a stream of the
 * loader's own, and the caller's current stream is ordered behind that; the
 * host does not wait for the GPU. The call ends the use of the batch before, by
 * what is on the current stream by then. */
OAR_API oar_status oar_loader_next(oar_loader *loader, oar_tensor **field,
                                   int *more);

OAR_END_DECLS

#endif
