/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of other libraries by DLPack: any version, device, dtype, shape,
 * strides and offset. The deleter runs exactly once. What is accepted and lies
 * within the given memory is read. */
#include "fuzz.h"

#include <oarsong/dlpack.h>
#include <oarsong/ops.h>

#include "tensor/dlpack_abi.h"

enum { DIMS = 10, ROOM = 4096 };

typedef struct imported_tensor {
    oari_dl_managed managed;
    int64_t shape[DIMS], strides[DIMS];
    int deleted;
} imported_tensor;

static void delete_it(oari_dl_managed *self)
{
    imported_tensor *s = self->manager_ctx;

    s->deleted++;
}

/* Small numbers mostly, or few would get far. */
static int64_t take_number(const uint8_t **data, size_t *bytes)
{
    uint8_t how;
    int64_t number = 0;
    int8_t small;

    fuzz_take(data, bytes, &how, 1);
    if (how % 8 == 0)
        fuzz_take(data, bytes, &number, 8);
    else {
        fuzz_take(data, bytes, &small, 1);
        number = small;
    }
    return number;
}

static void fill(imported_tensor *s, const uint8_t *data, size_t bytes)
{
    oari_dl_tensor *t = &s->managed.tensor;
    struct {
        uint8_t ndim, code, bits, lanes, major, device, flags, strides;
    } ask;

    fuzz_take(&data, &bytes, &ask, sizeof ask);
    s->managed.version.major = ask.major % 8 == 7 ? 2 : 1;
    s->managed.flags = ask.flags % 4;
    t->device.type = ask.device % 8 == 7 ? 2 : OARI_DL_CPU;
    t->ndim = ask.ndim % 16 == 15 ? -1 : ask.ndim % (DIMS + 1);
    t->dtype = (oari_dl_dtype){ ask.code % 8, (uint8_t)(8 << ask.bits % 5),
                                ask.lanes % 8 == 7 ? 2 : 1 };
    t->byte_offset = (uint64_t)take_number(&data, &bytes) % ROOM;
    for (int i = 0; i < DIMS; i++) {
        s->shape[i] = take_number(&data, &bytes);
        s->strides[i] = take_number(&data, &bytes);
    }
    t->shape = ask.strides % 16 == 15 ? NULL : s->shape;
    t->strides = ask.strides % 2 != 0 ? s->strides : NULL;
}

/* How far the last element along a dimension is; 0: beyond all memory. */
static int reach(int64_t step, int64_t count, int64_t *far)
{
    return !__builtin_mul_overflow(step, count - 1, far) && *far <= ROOM &&
           *far >= -ROOM;
}

/* Whether all elements lie in the memory that was given, and are not too many
 * to copy. */
static int is_inside(const imported_tensor *s)
{
    const oari_dl_tensor *t = &s->managed.tensor;
    int64_t low = 0, high = 0, row = 1, far;
    int size = t->dtype.bits / 8;

    for (int i = 0; i < t->ndim; i++)
        if (s->shape[i] == 0)
            return 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (!reach(t->strides != NULL ? s->strides[i] : row, s->shape[i], &far))
            return 0;
        *(far < 0 ? &low : &high) += far;
        if ((row *= s->shape[i]) > ROOM)
            return 0; /* steps of nothing, and more than we would copy */
    }
    return low * size + (int64_t)t->byte_offset >= 0 &&
           (high + 1) * size + (int64_t)t->byte_offset <= ROOM;
}

static void use(oar_tensor *tensor, const imported_tensor *s)
{
    oari_dl_managed *out;
    oar_tensor *copy;

    if (is_inside(s) && (copy = oar_cast(NULL, tensor, OAR_F64)) != NULL)
        oar_tensor_release(copy);
    if (oar_dlpack_export(tensor, &out) == OAR_OK)
        out->deleter(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    void *memory = aligned_alloc(64, ROOM);
    imported_tensor s = { 0 };
    oar_tensor *tensor;

    FUZZ_CHECK(memory != NULL);
    memset(memory, 1, ROOM);
    s.managed.manager_ctx = &s;
    s.managed.deleter = delete_it;
    fill(&s, data, bytes);
    s.managed.tensor.data = memory;
    tensor = oar_dlpack_import(NULL, &s.managed);
    if (tensor != NULL) {
        FUZZ_CHECK(s.deleted == 0);
        use(tensor, &s);
        oar_tensor_release(tensor);
    }
    FUZZ_CHECK(s.deleted == 1);
    free(memory);
    return 0;
}
