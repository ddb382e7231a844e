/* SPDX-License-Identifier: Apache-2.0 */
/* catalog_reshard: a generation written once more, as another number of ranks
 * would have written it. One process makes the plan of them all and then stands
 * for each in turn. */
#include <stdio.h>

#include "base/status.h"
#include "file/new_file.h"
#include "parallel/checkpoint/catalog/catalog.h"

enum {
    MOST_RANKS = 99999, /* five digits in the names of files */
    LEAST_BLOCK = 64 << 10
};

/* Plans for ranks that all hold every tensor whole. */
static oar_status make_plan(const oari_ckpt_index *index, oar_checkpoint *to,
                            int ranks)
{
    oari_ckpt_part_list list = { .items = 0 };
    oari_ckpt_lists lists = { .ranks = ranks };
    oar_status status = OAR_OK;

    for (int64_t i = 0; i < index->tensors && status == OAR_OK; i++) {
        const oari_ckpt_index_tensor *t = &index->tensor[i];
        oari_ckpt_tensor tensor = { .section = t->section,
                                    .name = t->name,
                                    .dtype = t->dtype,
                                    .whole = oari_ckpt_index_shape(index, t) };
        oari_box box = oari_box_whole(tensor.whole);

        status = oari_ckpt_part_list_add_box(&list, &tensor, &box);
    }
    if (status == OAR_OK)
        status = oari_ckpt_part_list_seal(&list);
    for (int r = 0; r < ranks && status == OAR_OK; r++)
        status = oari_ckpt_lists_add(&lists, r, list.wire.data,
                                     (size_t)list.wire.count);
    if (status == OAR_OK)
        status = oari_ckpt_save_plan_make(&lists, NULL, &to->plan);
    oari_ckpt_part_list_free(&list);
    oari_ckpt_lists_free(&lists);
    to->ranks = ranks;
    return status == OAR_OK ? oari_ckpt_file_layout_make(&to->plan, &to->layout)
                            : status;
}

/* Both lists are sorted as they are wanted: aliases come behind the values. */
static oar_status copy_values(const oari_ckpt_index *index,
                              oari_ckpt_values *values)
{
    for (int64_t i = 0; i < index->values; i++) {
        oari_ckpt_own_value v = { .name = oari_strdup(index->value[i].name),
                                  .text = oari_strdup(index->value[i].text),
                                  .is_text = index->value[i].is_text };

        if (v.name == NULL || v.text == NULL ||
            oari_vec_push(&values->value, v) != OAR_OK) {
            oari_free(v.name);
            oari_free(v.text);
            return OAR_E_NOMEM;
        }
    }
    for (int64_t i = 0; i < index->aliases; i++)
        OARI_TRY(oari_ckpt_add_alias(values, &index->alias[i]));
    return OAR_OK;
}

/* The plan's tensors are those of the index, in the same order. */
static oar_status write_all(oari_ckpt_saving *s, const oar_catalog *catalog)
{
    size_t tensors = (size_t)catalog->index.tensors;
    oari_catalog_source *source = oari_alloc(tensors, sizeof *source);
    oari_catalog_rewrite rewrite = { catalog, s->c, source };
    oar_status status;

    if (source == NULL)
        return OAR_E_NOMEM;
    for (size_t i = 0; i < tensors; i++)
        source[i].tensor = &catalog->index.tensor[i];
    status = oari_random_id(s->id);
    if (status == OAR_OK)
        status = oari_ckpt_make_part(s);
    if (status == OAR_OK)
        status = oari_catalog_rewrite_files(&rewrite, s);
    if (status == OAR_OK)
        status = copy_values(&catalog->index, &s->values);
    if (status == OAR_OK)
        status = oari_ckpt_commit(s);
    if (status != OAR_OK)
        oari_ckpt_remove_part(s);
    oari_free(source);
    return status;
}

oar_status oar_catalog_reshard(oar_catalog *catalog, const char *folder,
                               int ranks)
{
    oar_checkpoint_opts opts = oar_checkpoint_opts_init();
    oari_ckpt_saving *s;
    oar_checkpoint *to;
    oar_status status;

    if (catalog == NULL || ranks < 1 || ranks > MOST_RANKS)
        return oari_fail(OAR_E_ARG,
                         "catalog_reshard: %d ranks; 1 to %d are allowed",
                         catalog == NULL ? 0 : ranks, MOST_RANKS);
    opts.block_bytes = catalog->index.block_bytes;
    if (opts.block_bytes < LEAST_BLOCK)
        opts.block_bytes = LEAST_BLOCK;
    OARI_TRY(oar_checkpoint_open(NULL, folder, &opts, &to));
    s = oari_alloc(1, sizeof *s);
    status = s == NULL ? OAR_E_NOMEM : make_plan(&catalog->index, to, ranks);
    if (status == OAR_OK) {
        s->c = to;
        s->step = catalog->index.step;
        s->generation = -1;
        s->opts.keep = catalog->index.keep;
        snprintf(s->note, sizeof s->note, "%s", catalog->index.note);
        status = write_all(s, catalog);
        if (s->generation >= 0)
            (void)to->disk->close(to->disk, s->generation);
        oari_ckpt_saving_free(s);
    } else {
        oari_free(s);
    }
    oar_checkpoint_close(to); /* leaves the last error as it is */
    return status;
}
