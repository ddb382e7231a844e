/* SPDX-License-Identifier: Apache-2.0 */
/* generation_index_write: an index as index.json. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "file/safetensors_header.h"
#include "parallel/checkpoint/generation_index.h"

static void write_numbers(oari_json_writer *w, const char *key, int count,
                          const int64_t *number)
{
    oari_json_add(w, ",\"%s\":[", key);
    for (int i = 0; i < count; i++)
        oari_json_add(w, "%s%" PRId64, i > 0 ? "," : "", number[i]);
    oari_json_add(w, "]");
}

static void write_files(oari_json_writer *w, const oari_ckpt_index *index)
{
    oari_json_add(w, ",\n\"files\":[");
    for (int64_t i = 0; i < index->files; i++) {
        const oari_ckpt_index_file *f = &index->file[i];

        oari_json_add(w, "%s{\"path\":", i > 0 ? ",\n" : "");
        oari_json_quote(w, f->path);
        oari_json_add(w,
                      ",\"bytes\":%" PRIu64 ",\"data\":%" PRIu64 ",\"sums\":\"",
                      f->bytes, f->data);
        for (int64_t k = 0; k < f->blocks; k++)
            oari_json_add(w, "%016" PRIx64, f->sum[k]);
        oari_json_add(w, "\"}");
    }
    oari_json_add(w, "]");
}

static void write_tensor(oari_json_writer *w, const oari_ckpt_index *index,
                         const oari_ckpt_index_tensor *t)
{
    oari_json_quote(w, t->name);
    oari_json_add(w, ":{\"dtype\":\"%s\"",
                  oari_safetensors_dtype_name(t->dtype));
    write_numbers(w, "shape", t->ndim, index->dim + t->dims);
    oari_json_add(w, ",\"chunks\":[");
    for (int64_t i = 0; i < t->chunks; i++) {
        const oari_ckpt_index_chunk *c = &index->chunk[t->first + i];

        oari_json_add(w, "%s{\"file\":%d,\"at\":%" PRIu64, i > 0 ? "," : "",
                      c->file, c->at);
        write_numbers(w, "offset", t->ndim, index->dim + c->dims);
        write_numbers(w, "shape", t->ndim, index->dim + c->dims + t->ndim);
        oari_json_add(w, "}");
    }
    oari_json_add(w, "]}");
}

/* Begins the object of another section than the one before, or goes on in the
 * same one. */
static void write_section(oari_json_writer *w, const char *before,
                          const char *section)
{
    if (before != NULL && strcmp(before, section) == 0) {
        oari_json_add(w, ",\n");
        return;
    }
    oari_json_add(w, "%s", before != NULL ? "},\n" : "");
    oari_json_quote(w, section);
    oari_json_add(w, ":{");
}

void oari_ckpt_index_write(oari_json_writer *w, const oari_ckpt_index *index)
{
    const char *before = NULL;

    oari_json_add(w, "{\"oarsong_checkpoint\":%d,\"id\":", OARI_CKPT_FORMAT);
    oari_json_quote(w, index->id);
    oari_json_add(w,
                  ",\"step\":%" PRId64 ",\"saved_unix_s\":%" PRId64
                  ",\"ranks\":%d,\"keep\":%d,\"note\":",
                  index->step, index->saved_unix_s, index->ranks, index->keep);
    oari_json_quote(w, index->note);
    oari_json_add(w, ",\"block_bytes\":%" PRIu64, index->block_bytes);
    write_files(w, index);
    oari_json_add(w, ",\n\"tensors\":{");
    for (int64_t i = 0; i < index->tensors; i++) {
        write_section(w, before, index->tensor[i].section);
        before = index->tensor[i].section;
        write_tensor(w, index, &index->tensor[i]);
    }
    oari_json_add(w, "%s},\n\"aliases\":{", before != NULL ? "}" : "");
    before = NULL;
    for (int64_t i = 0; i < index->aliases; i++) {
        write_section(w, before, index->alias[i].section);
        before = index->alias[i].section;
        oari_json_quote(w, index->alias[i].name);
        oari_json_add(w, ":");
        oari_json_quote(w, index->alias[i].of);
    }
    oari_json_add(w, "%s},\n\"values\":{", before != NULL ? "}" : "");
    for (int64_t i = 0; i < index->values; i++) {
        oari_json_add(w, "%s", i > 0 ? ",\n" : "");
        oari_json_quote(w, index->value[i].name);
        oari_json_add(w, ":");
        if (index->value[i].is_text)
            oari_json_quote(w, index->value[i].text);
        else
            oari_json_add(w, "%s", index->value[i].text);
    }
    oari_json_add(w, "},\n");
    if (w->status == OAR_OK)
        oari_json_add(w, "\"end\":\"%016" PRIx64 "\"}\n",
                      oari_block_sum(w->text.data, (size_t)w->text.count));
}
