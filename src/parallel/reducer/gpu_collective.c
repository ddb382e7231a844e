/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_collective: collectives of tensors on a GPU that do not change their
 * input: a copy on the stream, then the collective on the copy. */
#include <oarsong/gpu.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/status.h"
#include "device/cuda/cuda_blas.h"

/* Copies the input and gives the copy's span. */
static oar_status copy_input(const char *what, oar_group *group,
                             const oar_tensor *tensor,
                             const oar_call_opts *opts, oar_tensor **out,
                             oar_tensor **copy, oar_span *span)
{
    oar_device device = oar_tensor_device(tensor);
    oar_status status;

    if (group == NULL || tensor == NULL || out == NULL)
        return oari_fail(OAR_E_ARG, "%s without a %s", what,
                         group == NULL    ? "group"
                         : tensor == NULL ? "tensor"
                                          : "place for the result");
    if (device.kind != OAR_CUDA)
        return oari_fail(OAR_E_DEVICE, "%s of a tensor on the %s", what,
                         oar_device_text(device).text);
    if (opts != NULL && opts->stream != NULL) {
        void *before = oar_stream_current(device);

        OARI_TRY(oar_stream_set_current(device, opts->stream));
        *copy = oar_to(NULL, tensor, device);
        oar_stream_set_current(device, before);
    } else
        *copy = oar_to(NULL, tensor, device);
    if (*copy == NULL)
        return oar_last_error()->status;
    status = oar_tensor_span(*copy, span);
    if (status != OAR_OK)
        oar_tensor_release(*copy);
    return status;
}

static oar_status give_copy(oar_status status, oar_tensor *copy,
                            oar_tensor **out)
{
    if (status == OAR_OK)
        *out = copy;
    else
        oar_tensor_release(copy);
    return status;
}

oar_status oar_gpu_all_reduce_at(const char *file, int line, oar_group *group,
                                 const oar_tensor *tensor, oar_reduce_op op,
                                 const oar_call_opts *opts, oar_tensor **out)
{
    OARI_CALLED_FROM(file, line);
    oar_tensor *copy;
    oar_span span;

    OARI_TRY(
        copy_input("gpu_all_reduce", group, tensor, opts, out, &copy, &span));
    return give_copy(oar_all_reduce(group, span, op, opts, NULL), copy, out);
}

oar_status oar_gpu_broadcast_at(const char *file, int line, oar_group *group,
                                const oar_tensor *tensor, int root,
                                const oar_call_opts *opts, oar_tensor **out)
{
    OARI_CALLED_FROM(file, line);
    oar_tensor *copy;
    oar_span span;

    OARI_TRY(
        copy_input("gpu_broadcast", group, tensor, opts, out, &copy, &span));
    return give_copy(oar_broadcast(group, span, root, opts, NULL), copy, out);
}

/* Rank 0 gives its text to the others. */
static oar_status send_choices(oar_group *group)
{
    char *text = NULL;
    size_t bytes = 0;
    oar_status wrote = oari_blas_write_choices(&text, &bytes);
    void *data = text; /* nothing, if there is no memory: the others go on */
    oar_status status =
        oar_broadcast_bytes(group, &data, &bytes, 0, NULL, NULL);

    oari_free(text);
    return status != OAR_OK ? status : wrote;
}

oar_status oar_gpu_share_choices(oar_group *group, int *changed)
{
    void *text = NULL;
    size_t bytes = 0;
    int count = 0;
    oar_status status;

    if (group == NULL)
        return oari_fail(OAR_E_ARG, "share choices without a group");
    if (oar_group_rank(group) == 0)
        OARI_TRY(send_choices(group));
    else {
        OARI_TRY(oar_broadcast_bytes(group, &text, &bytes, 0, NULL, NULL));
        status = oari_blas_take_choices(text, bytes, &count);
        oar_free(text);
        OARI_TRY(status);
    }
    if (changed != NULL)
        *changed = count;
    return OAR_OK;
}
