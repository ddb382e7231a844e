/* SPDX-License-Identifier: Apache-2.0 */
/* A loader whose batches are on a GPU gives what one on the cpu gives: a batch
 * that is still used there, or kept, is not written over. */
#include <string.h>

#include <oarsong/data.h>

#include "support/gpu.h"
#include "support/last_error.h"

enum { SAMPLES = 11, WIDTH = 3, BATCH = 4, BATCHES = 3, EPOCHS = 3 };

static oar_status make_data(oar_dataset **data)
{
    oar_tensor *field[2] = {
        oar_arange(NULL, OAR_F32, SAMPLES * WIDTH, 1, 0.5),
        oar_arange(NULL, OAR_I64, SAMPLES, 100, 1),
    };
    oar_storage *numbers = oar_tensor_storage(field[0]);
    oar_tensor *rows =
        oar_view_of(NULL, numbers, 0, OAR_F32, OAR_SHAPE(SAMPLES, WIDTH));
    oar_tensor *both[2] = { rows, field[1] };
    oar_status status = oar_dataset_tensors(2, both, data);

    oar_tensor_release(rows);
    oar_tensor_release(field[0]);
    oar_tensor_release(field[1]);
    return status;
}

/* Returns whether both have the same shape and numbers. */
static int are_alike(const oar_tensor *here, const oar_tensor *there)
{
    double a[BATCH * WIDTH], b[BATCH * WIDTH];
    int64_t count = oar_tensor_count(here);

    return oar_tensor_device(there).kind == OAR_CUDA &&
           oar_tensor_dtype(here) == oar_tensor_dtype(there) &&
           oar_tensor_count(there) == count &&
           oar_tensor_read(here, OAR_F64, a) == OAR_OK &&
           oar_tensor_read(there, OAR_F64, b) == OAR_OK &&
           memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

static int compare_epochs(test_job *c, int rank, oar_loader *here,
                          oar_loader *there)
{
    oar_tensor *a[2], *b[2], *kept = NULL, *copy[BATCHES];
    int more;

    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
        RANK_OK(oar_loader_start(here, epoch, 0));
        RANK_OK(oar_loader_start(there, epoch, 0));
        for (int i = 0; i < BATCHES; i++) { /* no wait: copies come late */
            RANK_OK(oar_loader_next(there, b, &more));
            RANK_CHECK(more);
            copy[i] = oar_to(NULL, b[0], gpu_at(0));
            if (i == 1)
                kept = oar_tensor_retain(b[0]);
        }
        RANK_OK(oar_loader_next(there, b, &more));
        RANK_CHECK(!more);
        for (int i = 0; i < BATCHES; i++) {
            RANK_OK(oar_loader_next(here, a, &more));
            RANK_CHECK(are_alike(a[0], copy[i]));
            RANK_CHECK(i != 1 || are_alike(a[0], kept));
            oar_tensor_release(copy[i]);
        }
        oar_tensor_release(kept);
    }
    return 0;
}

static int read_both(test_job *c, int rank, int ahead)
{
    oar_device gpu = gpu_at(0);
    oar_loader_opts o = {
        .size = sizeof o, .batch = BATCH, .ahead = ahead, .seed = 5
    };
    oar_loader *here = NULL, *there = NULL;
    oar_dataset *data = NULL;
    oar_loader_opts told = { .size = sizeof told };

    RANK_OK(make_data(&data));
    RANK_OK(oar_loader_create(data, &o, &here));
    o.device = &gpu;
    RANK_OK(oar_loader_create(data, &o, &there));
    RANK_OK(oar_loader_describe(there, &told));
    RANK_CHECK(told.device != NULL && told.device->kind == OAR_CUDA);
    RANK_ZERO(compare_epochs(c, rank, here, there));
    oar_loader_destroy(there);
    oar_loader_destroy(here);
    oar_dataset_destroy(data);
    return 0;
}

GPU_TEST(batches_are_those_of_the_cpu)
{
    void *stream;

    RANK_ZERO(read_both(c, rank, 0));
    RANK_ZERO(read_both(c, rank, -1)); /* no thread */
    RANK_OK(oar_stream_create(gpu_at(0), 0, &stream));
    RANK_OK(oar_stream_set_current(gpu_at(0), stream));
    RANK_ZERO(read_both(c, rank, 1));
    RANK_OK(oar_stream_set_current(gpu_at(0), NULL));
    oar_stream_destroy(gpu_at(0), stream);
    return 0;
}

GPU_TEST(a_gpu_that_is_not_there_is_refused)
{
    oar_device nowhere = oar_device_of(OAR_CUDA, 63);
    oar_loader_opts o = { .size = sizeof o, .device = &nowhere };
    oar_loader *loader = NULL;
    oar_dataset *data = NULL;

    RANK_OK(make_data(&data));
    RANK_CHECK(fails_with(oar_loader_create(data, &o, &loader), OAR_E_DEVICE,
                          "cuda:63"));
    RANK_CHECK(loader == NULL);
    oar_dataset_destroy(data);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_are_those_of_the_cpu),
        cmocka_unit_test(a_gpu_that_is_not_there_is_refused),
    };

    gpu_begin();
    return cmocka_run_group_tests_name("gpu_loader", tests, NULL, NULL);
}
