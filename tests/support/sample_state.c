/* SPDX-License-Identifier: Apache-2.0 */
#include "support/sample_state.h"

#include <dirent.h>
#include <string.h>

#include "support/ranks.h"

oar_status sample_state_make(sample_state *s, int rank, int ranks)
{
    oar_shape whole = OAR_SHAPE(SAMPLE_MOMENTS), part;
    oar_place place = { .size = sizeof place };

    *s = (sample_state){ .state = NULL };
    CHECK_OK(oar_place_of_rank(whole, 0, rank, ranks, &place, &part));
    s->first = place.offset[0];
    s->count = part.dim[0];
    CHECK_OK(oar_state_create(&s->state));
    CHECK_OK(oar_state_add_span(s->state, "model", "weight",
                                oar_span_of(s->weight, SAMPLE_WEIGHTS, OAR_F32),
                                OAR_SHAPE(4, 5), NULL));
    CHECK_OK(oar_state_add_span(
        s->state, "optim", "moment",
        oar_span_of(s->moment, (size_t)s->count, OAR_F32), part, &place));
    CHECK_OK(oar_state_add_i64(s->state, "step", &s->step));
    return OAR_OK;
}

void sample_state_set(sample_state *s, int64_t step)
{
    s->step = step;
    for (int i = 0; i < SAMPLE_WEIGHTS; i++)
        s->weight[i] = (float)(100 * step + i);
    for (int64_t i = 0; i < s->count; i++)
        s->moment[i] = (float)(1000 * step + 7 * (s->first + i));
}

int sample_state_is_whole(const sample_state *s)
{
    sample_state want = { .first = s->first, .count = s->count };

    sample_state_set(&want, s->step);
    return memcmp(want.weight, s->weight, sizeof want.weight) == 0 &&
           memcmp(want.moment, s->moment,
                  (size_t)s->count * sizeof want.moment[0]) == 0;
}

oar_checkpoint_opts sample_checkpoint_opts(void)
{
    return (oar_checkpoint_opts){ .size = sizeof(oar_checkpoint_opts),
                                  .threads = 1,
                                  .buffered = 1,
                                  .block_bytes = 64 << 10 };
}

int folder_names_with(const char *path, const char *text)
{
    DIR *folder = opendir(path);
    struct dirent *item;
    int found = 0;

    if (folder == NULL)
        return -1;
    while ((item = readdir(folder)) != NULL)
        found += strstr(item->d_name, text) != NULL;
    closedir(folder);
    return found;
}
