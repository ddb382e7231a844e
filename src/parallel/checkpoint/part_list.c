/* SPDX-License-Identifier: Apache-2.0 */
/* part_list: lists of parts, and their form on the wire. */
#include "parallel/checkpoint/part_list.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/status.h"
#include "base/utf8.h"

enum {
    MAGIC = 0x4352414f, /* "OARC" */
    VERSION = 1,
    HEADER_BYTES = 12,
    ENTRY_BYTES = 6,     /* without dims and name */
    DIM_BYTES = 3 * 8,   /* of an entry */
    LONGEST_SHOWN = 150, /* bytes of a name in a sentence */
    ALL_FLAGS = OARI_CKPT_COUNTER | OARI_CKPT_BYTES
};

/* ---- names --------------------------------------------------------------- */

int oari_ckpt_name_compare(const oari_ckpt_tensor *a, const oari_ckpt_tensor *b)
{
    int order = strcmp(a->section, b->section);

    return order != 0 ? order : strcmp(a->name, b->name);
}

oari_box_string oari_ckpt_name_text(const oari_ckpt_tensor *tensor)
{
    size_t shown = strlen(tensor->name);
    const char *more = "";
    oari_box_string s;

    if (shown > LONGEST_SHOWN) {
        shown = LONGEST_SHOWN; /* and not in the middle of a character */
        while (((unsigned char)tensor->name[shown] & 0xc0) == 0x80)
            shown--;
        more = "...";
    }
    snprintf(s.text, sizeof s.text, "\"%.*s/%.*s%s\"",
             (int)OARI_CKPT_LONGEST_SECTION, tensor->section, (int)shown,
             tensor->name, more);
    return s;
}

static int is_section(const char *text, size_t bytes)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "abcdefghijklmnopqrstuvwxyz0123456789-_";

    for (size_t i = 0; i < bytes; i++)
        if (memchr(allowed, text[i], sizeof allowed - 1) == NULL)
            return 0;
    return bytes > 0 && bytes <= OARI_CKPT_LONGEST_SECTION;
}

static int is_name(const char *text, size_t bytes)
{
    size_t length;
    uint32_t point;

    for (size_t at = 0; at < bytes; at += length) {
        length = oari_utf8_read(text + at, bytes - at, &point);
        if (length == 0 || point == 0)
            return 0;
    }
    return bytes > 0 && bytes <= OARI_CKPT_LONGEST_NAME;
}

/* ---- adding -------------------------------------------------------------- */

static oar_status check_tensor(const oari_ckpt_tensor *t)
{
    if (t->section == NULL || !is_section(t->section, strlen(t->section)))
        return oari_fail(OAR_E_ARG,
                         "section \"%.80s\": 1 to %d letters, digits, '-' and "
                         "'_' are needed",
                         t->section != NULL ? t->section : "",
                         (int)OARI_CKPT_LONGEST_SECTION);
    if (t->name == NULL || t->name[0] == 0)
        return oari_fail(OAR_E_ARG, "a tensor of section %s has no name",
                         t->section);
    if (strlen(t->name) > OARI_CKPT_LONGEST_NAME)
        return oari_fail(OAR_E_ARG, "the name %s has %zu bytes; %d are allowed",
                         oari_ckpt_name_text(t).text, strlen(t->name),
                         (int)OARI_CKPT_LONGEST_NAME);
    if (!is_name(t->name, strlen(t->name)))
        return oari_fail(OAR_E_ARG, "a name in section %s is not UTF-8",
                         t->section);
    if (oar_dtype_size(t->dtype) == 0)
        return oari_fail(OAR_E_ARG, "tensor %s: there is no dtype %d",
                         oari_ckpt_name_text(t).text, (int)t->dtype);
    if ((t->flags & ~(unsigned)ALL_FLAGS) != 0)
        return oari_fail(OAR_E_ARG, "tensor %s: there are no flags %#x",
                         oari_ckpt_name_text(t).text, t->flags);
    if (t->whole.ndim < 0 || t->whole.ndim > OAR_MAX_DIMS)
        return oari_fail(OAR_E_ARG, "tensor %s: %d dims; 0 to %d are allowed",
                         oari_ckpt_name_text(t).text, t->whole.ndim,
                         (int)OAR_MAX_DIMS);
    if (!oari_box_shape_fits(t->whole, oar_dtype_size(t->dtype)))
        return oari_fail(OAR_E_ARG, "tensor %s cannot have the shape %s",
                         oari_ckpt_name_text(t).text,
                         oari_box_shape_text(t->whole).text);
    return OAR_OK;
}

oar_status oari_ckpt_part_list_add_box(oari_ckpt_part_list *list,
                                       const oari_ckpt_tensor *tensor,
                                       const oari_box *box)
{
    OARI_TRY(check_tensor(tensor));
    if (box->ndim != tensor->whole.ndim)
        return oari_fail(
            OAR_E_ARG, "tensor %s has %d dims, and its part has %d",
            oari_ckpt_name_text(tensor).text, tensor->whole.ndim, box->ndim);
    if (!oari_box_fits(box, tensor->whole))
        return oari_fail(OAR_E_ARG, "tensor %s: the part %s is not within %s",
                         oari_ckpt_name_text(tensor).text,
                         oari_box_text(box).text,
                         oari_box_shape_text(tensor->whole).text);
    OARI_TRY(
        oari_vec_push(&list->part, (oari_ckpt_part){ .tensor = *tensor,
                                                     .box = *box,
                                                     .item = list->items }));
    list->items++;
    return OAR_OK;
}

oar_status oari_ckpt_part_list_add_flat(oari_ckpt_part_list *list,
                                        const oari_ckpt_tensor *tensor,
                                        int64_t first, int64_t count)
{
    oari_box box[OARI_FLAT_BOXES];
    int64_t at = 0;
    int boxes;

    OARI_TRY(check_tensor(tensor));
    boxes = oari_flat_boxes(tensor->whole, first, count, box);
    if (boxes < 0)
        return oari_fail(OAR_E_ARG,
                         "tensor %s: %lld elements from element %lld on are "
                         "not within %s",
                         oari_ckpt_name_text(tensor).text, (long long)count,
                         (long long)first,
                         oari_box_shape_text(tensor->whole).text);
    OARI_TRY(oari_vec_reserve(&list->part, boxes));
    for (int i = 0; i < boxes; i++) {
        list->part.data[list->part.count++] = (oari_ckpt_part){
            .tensor = *tensor, .box = box[i], .item = list->items, .first = at
        };
        at += oari_box_count(&box[i]);
    }
    list->items++;
    return OAR_OK;
}

void oari_ckpt_part_list_free(oari_ckpt_part_list *list)
{
    oari_vec_free(&list->part);
    oari_vec_free(&list->wire);
    oari_free(list->text);
    memset(list, 0, sizeof *list);
}

/* ---- writing ------------------------------------------------------------- */

static int compare_in_section(const oari_ckpt_part *a, const oari_ckpt_part *b)
{
    int order = strcmp(a->tensor.name, b->tensor.name);

    return order != 0 ? order : oari_box_compare(&a->box, &b->box);
}

static int compare_parts(const void *left, const void *right)
{
    const oari_ckpt_part *a = left, *b = right;
    int order = strcmp(a->tensor.section, b->tensor.section);

    if (order == 0)
        order = compare_in_section(a, b);
    return order != 0 ? order : a->item < b->item ? -1 : a->item > b->item;
}

static void put_le(oari_ckpt_part_list *list, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        list->wire.data[list->wire.count++] = (unsigned char)(value >> 8 * i);
}

static void put_text(oari_ckpt_part_list *list, const char *text, size_t bytes)
{
    memcpy(list->wire.data + list->wire.count, text, bytes);
    list->wire.count += (int64_t)bytes;
}

static void put_part(oari_ckpt_part_list *list, const oari_ckpt_part *part,
                     int section)
{
    int ndim = part->box.ndim;
    size_t length = strlen(part->tensor.name);

    put_le(list, (uint64_t)section, 1);
    put_le(list, (uint64_t)part->tensor.dtype, 1);
    put_le(list, (uint64_t)ndim, 1);
    put_le(list, part->tensor.flags, 1);
    for (int d = 0; d < ndim; d++)
        put_le(list, (uint64_t)part->tensor.whole.dim[d], 8);
    for (int d = 0; d < ndim; d++)
        put_le(list, (uint64_t)part->box.offset[d], 8);
    for (int d = 0; d < ndim; d++)
        put_le(list, (uint64_t)part->box.extent[d], 8);
    put_le(list, length, 2);
    put_text(list, part->tensor.name, length);
}

/* Returns whether part i is the first one of its section. */
static int begins_section(const oari_ckpt_part_list *list, int64_t i)
{
    const oari_ckpt_part *part = list->part.data;

    return i == 0 ||
           strcmp(part[i].tensor.section, part[i - 1].tensor.section) != 0;
}

/* Checks sorted parts, and adds up what their texts and the wire take. */
static oar_status measure_parts(const oari_ckpt_part_list *list,
                                int64_t *text_bytes, int64_t *wire_bytes)
{
    int64_t sections = 0;

    *text_bytes = 0;
    *wire_bytes = HEADER_BYTES + 1;
    for (int64_t i = 0; i < list->part.count; i++) {
        const oari_ckpt_part *p = &list->part.data[i];
        int64_t name = (int64_t)strlen(p->tensor.name);
        int64_t section = (int64_t)strlen(p->tensor.section);
        int begins = begins_section(list, i);
        oari_box common;

        if (!begins && p->item != p[-1].item &&
            strcmp(p->tensor.name, p[-1].tensor.name) == 0 &&
            (oari_box_compare(&p->box, &p[-1].box) == 0 ||
             oari_box_meet(&p->box, &p[-1].box, &common)))
            return oari_fail(OAR_E_ARG, "tensor %s was added twice",
                             oari_ckpt_name_text(&p->tensor).text);
        sections += begins;
        *text_bytes += name + 1 + begins * (section + 1);
        *wire_bytes += ENTRY_BYTES + DIM_BYTES * p->box.ndim + name +
                       begins * (section + 1);
    }
    if (sections > OARI_CKPT_MOST_SECTIONS)
        return oari_fail(OAR_E_ARG, "%lld sections; %d are allowed",
                         (long long)sections, (int)OARI_CKPT_MOST_SECTIONS);
    if (list->part.count > UINT32_MAX)
        return oari_fail(OAR_E_ARG, "%lld parts; %lld are allowed",
                         (long long)list->part.count, (long long)UINT32_MAX);
    return OAR_OK;
}

void oari_ckpt_copy_names(oari_ckpt_tensor *tensor, const char **section,
                          char **at)
{
    if (*section == NULL || strcmp(*section, tensor->section) != 0) {
        *section = *at;
        *at = stpcpy(*at, tensor->section) + 1;
    }
    tensor->section = *section;
    tensor->name = strcpy(*at, tensor->name);
    *at += strlen(*at) + 1;
}

/* Makes the texts of a sorted list its own. */
static void copy_texts(oari_ckpt_part_list *list)
{
    const char *section = NULL;
    char *at = list->text;

    for (int64_t i = 0; i < list->part.count; i++)
        oari_ckpt_copy_names(&list->part.data[i].tensor, &section, &at);
}

oar_status oari_ckpt_part_list_seal(oari_ckpt_part_list *list)
{
    int64_t text_bytes, wire_bytes;
    int sections = 0;

    if (list->part.count > 0)
        qsort(list->part.data, (size_t)list->part.count,
              sizeof *list->part.data, compare_parts);
    OARI_TRY(measure_parts(list, &text_bytes, &wire_bytes));
    list->text = oari_alloc((size_t)text_bytes, 1);
    if (list->text == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(oari_vec_reserve(&list->wire, wire_bytes));
    copy_texts(list);
    put_le(list, MAGIC, 4);
    put_le(list, VERSION, 4);
    put_le(list, (uint64_t)list->part.count, 4);
    for (int64_t i = 0; i < list->part.count; i++) {
        sections += begins_section(list, i);
        put_part(list, &list->part.data[i], sections - 1);
    }
    put_le(list, (uint64_t)sections, 1);
    for (int64_t i = 0; i < list->part.count; i++)
        if (begins_section(list, i)) {
            const char *section = list->part.data[i].tensor.section;
            put_le(list, strlen(section), 1);
            put_text(list, section, strlen(section));
        }
    oari_hash128(list->wire.data, (size_t)list->wire.count, list->hash);
    return OAR_OK;
}

static int by_part(const void *key, const void *element)
{
    const oari_ckpt_part *a = key, *b = element;
    int order = oari_ckpt_name_compare(&a->tensor, &b->tensor);

    return order != 0 ? order : oari_box_compare(&a->box, &b->box);
}

const oari_ckpt_part *oari_ckpt_find_part(const oari_ckpt_part_list *list,
                                          const oari_ckpt_tensor *tensor,
                                          const oari_box *box)
{
    oari_ckpt_part wanted = { .tensor = *tensor, .box = *box };

    if (list->part.count == 0)
        return NULL;
    return bsearch(&wanted, list->part.data, (size_t)list->part.count,
                   sizeof wanted, by_part);
}

/* ---- reading ------------------------------------------------------------- */

/* Bytes that are read from the front. One that is not there is 0, and makes
 * `left` negative, where it stays. */
typedef struct reader {
    const unsigned char *at;
    int64_t left;
    char *text; /* where the next text goes */
} reader;

static uint64_t get_le(reader *r, int bytes)
{
    uint64_t value = 0;

    r->left = r->left < bytes ? -1 : r->left - bytes;
    for (int i = 0; r->left >= 0 && i < bytes; i++)
        value |= (uint64_t)*r->at++ << 8 * i;
    return value;
}

/* Copies a text of that length and ends it. */
static const char *get_text(reader *r, size_t bytes)
{
    char *text = r->text;

    if (r->left < (int64_t)bytes) {
        r->left = -1;
        return "";
    }
    memcpy(text, r->at, bytes);
    text[bytes] = 0;
    r->text += bytes + 1;
    r->at += bytes;
    r->left -= (int64_t)bytes;
    return text;
}

static oar_status refuse(int64_t entry, const char *why)
{
    return oari_fail(OAR_E_DATA, "a list of parts: entry %lld %s",
                     (long long)entry, why);
}

/* The section is filled in later: texts come after the entries. */
static oar_status read_part(reader *r, int64_t entry, oari_ckpt_part *part,
                            unsigned char *section)
{
    oari_ckpt_tensor *t = &part->tensor;
    size_t length;
    int ndim;

    memset(part, 0, sizeof *part);
    part->item = -1;
    *section = (unsigned char)get_le(r, 1);
    t->dtype = (oar_dtype)get_le(r, 1);
    ndim = (int)get_le(r, 1);
    t->flags = (unsigned)get_le(r, 1);
    if (ndim > OAR_MAX_DIMS)
        return refuse(entry, "has too many dims");
    t->whole.ndim = part->box.ndim = ndim;
    for (int d = 0; d < ndim; d++)
        t->whole.dim[d] = (int64_t)get_le(r, 8);
    for (int d = 0; d < ndim; d++)
        part->box.offset[d] = (int64_t)get_le(r, 8);
    for (int d = 0; d < ndim; d++)
        part->box.extent[d] = (int64_t)get_le(r, 8);
    length = (size_t)get_le(r, 2);
    t->name = get_text(r, length);
    if (r->left < 0)
        return refuse(entry, "is cut short");
    if (oar_dtype_size(t->dtype) == 0)
        return refuse(entry, "has no dtype that exists");
    if ((t->flags & ~(unsigned)ALL_FLAGS) != 0)
        return refuse(entry, "has flags that do not exist");
    if (!oari_box_shape_fits(t->whole, oar_dtype_size(t->dtype)))
        return refuse(entry, "has a shape that cannot be");
    if (!oari_box_fits(&part->box, t->whole))
        return refuse(entry, "is a part outside of its tensor");
    if (!is_name(t->name, length))
        return refuse(entry, "has no name of 1 to 1000 bytes of UTF-8");
    return OAR_OK;
}

/* Reads the sections, and puts their texts into the parts, which have been
 * read with the numbers in `section`. */
static oar_status read_sections(reader *r, oari_ckpt_part_list *list,
                                const unsigned char *section)
{
    const char *text[OARI_CKPT_MOST_SECTIONS];
    int sections = (int)get_le(r, 1);
    int64_t n = list->part.count;

    for (int s = 0; s < sections; s++) {
        size_t length = (size_t)get_le(r, 1);
        text[s] = get_text(r, length);
        if (r->left < 0 || !is_section(text[s], length) ||
            (s > 0 && strcmp(text[s - 1], text[s]) >= 0))
            return oari_fail(OAR_E_DATA,
                             "a list of parts: section %d is malformed", s);
    }
    if (r->left != 0)
        return oari_fail(OAR_E_DATA, "a list of parts: %s",
                         r->left < 0 ? "the sections are missing"
                                     : "bytes follow its end");
    for (int64_t i = 0; i < n; i++) {
        int least = i == 0 ? 0 : section[i - 1];
        if (section[i] >= sections || section[i] < least ||
            section[i] > (i == 0 ? 0 : least + 1))
            return refuse(i, "has a section number out of order");
        list->part.data[i].tensor.section = text[section[i]];
    }
    if (sections != (n == 0 ? 0 : section[n - 1] + 1))
        return oari_fail(OAR_E_DATA, "a list of parts: a section has no part");
    return OAR_OK;
}

/* The list grows only by parts that are right and in order, so that bytes that
 * are not a list cannot ask for much memory. */
static oar_status read_list(reader *r, oari_ckpt_part_list *list,
                            unsigned char **section)
{
    int64_t entries;

    if (get_le(r, 4) != MAGIC || get_le(r, 4) != VERSION)
        return oari_fail(OAR_E_DATA,
                         "a list of parts: it has no header of "
                         "version %d",
                         (int)VERSION);
    entries = (int64_t)get_le(r, 4);
    if (r->left < 0 || entries > r->left / (ENTRY_BYTES + 1))
        return oari_fail(OAR_E_DATA,
                         "a list of parts: %lld entries in %lld "
                         "bytes",
                         (long long)entries, (long long)r->left);
    /* Each text is copied with a zero byte, and has a length on the wire. */
    list->text = r->text = oari_alloc((size_t)r->left, 1);
    *section = oari_alloc((size_t)entries, 1);
    if (list->text == NULL || *section == NULL)
        return OAR_E_NOMEM;
    for (int64_t i = 0; i < entries; i++) {
        OARI_TRY(oari_vec_reserve(&list->part, 1));
        OARI_TRY(read_part(r, i, &list->part.data[i], &(*section)[i]));
        if (i > 0 && (*section)[i] == (*section)[i - 1] &&
            compare_in_section(&list->part.data[i - 1], &list->part.data[i]) >=
                0)
            return refuse(i, "is not in order");
        list->part.count++;
    }
    return read_sections(r, list, *section);
}

oar_status oari_ckpt_part_list_read(const void *wire, size_t bytes,
                                    oari_ckpt_part_list *list)
{
    oari_ckpt_part_list made = { 0 };
    reader r = { .at = wire, .left = (int64_t)bytes };
    unsigned char *section = NULL;
    oar_status status = read_list(&r, &made, &section);

    oari_free(section);
    if (status != OAR_OK) {
        oari_ckpt_part_list_free(&made);
        return status;
    }
    oari_hash128(wire, bytes, made.hash);
    *list = made;
    return OAR_OK;
}

/* ---- the lists of all ranks ---------------------------------------------- */

oar_status oari_ckpt_lists_add(oari_ckpt_lists *lists, int rank,
                               const void *wire, size_t bytes)
{
    oari_ckpt_holding holding = { .rank = rank };
    int64_t known = lists->list.count;
    uint64_t hash[2];

    if (rank < 0 || rank >= lists->ranks)
        return oari_fail(OAR_E_RANK, "a list of rank %d of %d", rank,
                         lists->ranks);
    oari_hash128(wire, bytes, hash);
    while (holding.list < known &&
           memcmp(lists->list.data[holding.list].hash, hash, sizeof hash) != 0)
        holding.list++;
    OARI_TRY(oari_vec_reserve(&lists->list, 1));
    OARI_TRY(oari_vec_reserve(&lists->holding, 1));
    if (holding.list == known) {
        oar_status status =
            oari_ckpt_part_list_read(wire, bytes, &lists->list.data[known]);
        if (status != OAR_OK)
            return oari_about(rank, status);
        lists->list.count++;
    }
    lists->holding.data[lists->holding.count++] = holding;
    return OAR_OK;
}

void oari_ckpt_lists_free(oari_ckpt_lists *lists)
{
    for (int64_t i = 0; i < lists->list.count; i++)
        oari_ckpt_part_list_free(&lists->list.data[i]);
    oari_vec_free(&lists->list);
    oari_vec_free(&lists->holding);
}
