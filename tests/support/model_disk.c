/* SPDX-License-Identifier: Apache-2.0 */
/* model_disk: a tree of inodes. Each has what programs see and what is durable;
 * a folder also has the changes in between. A descriptor is an inode's number
 * and a constant. */
#include "support/model_disk.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIRST_FD = 1000,
    PAGE = 4096,
    ALL_SUBSETS = 6,
    STATES_A_CALL = 300 /* are looked at, about; of more a sample is taken */
};

/* ---- memory: a test that has none left ends ------------------------------ */

static void *get_memory(void *old, size_t bytes)
{
    void *memory = realloc(old, bytes > 0 ? bytes : 1);

    if (memory == NULL)
        abort();
    return memory;
}

static void *copy_memory(const void *data, size_t bytes)
{
    void *copy = get_memory(NULL, bytes);

    if (bytes > 0)
        memcpy(copy, data, bytes);
    return copy;
}

/* ---- the tree ------------------------------------------------------------ */

typedef struct bytes {
    char *data;
    size_t count;
} bytes;

typedef struct disk_entry {
    char *name;
    int inode;
} disk_entry;

typedef struct entries {
    disk_entry *list;
    int count;
} entries;

/* A change of a folder: from goes, to is there and is this inode. */
typedef struct change {
    char *from, *to; /* or NULL */
    int inode;
} change;

typedef struct inode {
    int folder;
    bytes now, durable;        /* of a file */
    entries names, kept_names; /* of a folder: now, and durable */
    change *pending;
    int pending_count;
} inode;

typedef struct tree {
    inode *list;
    int count;
} tree;

static int add_inode(tree *t, int folder)
{
    t->list = get_memory(t->list, (size_t)(t->count + 1) * sizeof *t->list);
    t->list[t->count] = (inode){ .folder = folder };
    return t->count++;
}

static int find_name(const entries *names, const char *name)
{
    for (int i = 0; i < names->count; i++)
        if (strcmp(names->list[i].name, name) == 0)
            return i;
    return -1;
}

static void drop_name(entries *names, const char *name)
{
    int i = find_name(names, name);

    if (i < 0)
        return;
    free(names->list[i].name);
    names->list[i] = names->list[--names->count];
}

static void set_name(entries *names, const char *name, int node)
{
    drop_name(names, name);
    names->list = get_memory(names->list,
                             (size_t)(names->count + 1) * sizeof *names->list);
    names->list[names->count++] = (disk_entry){ strdup(name), node };
}

static void apply_change(entries *names, const change *c)
{
    if (c->from != NULL)
        drop_name(names, c->from);
    if (c->to != NULL)
        set_name(names, c->to, c->inode);
}

static void copy_names(entries *to, const entries *from)
{
    while (to->count > 0)
        drop_name(to, to->list[0].name);
    for (int i = 0; i < from->count; i++)
        set_name(to, from->list[i].name, from->list[i].inode);
}

static void forget_changes(inode *folder)
{
    for (int i = 0; i < folder->pending_count; i++) {
        free(folder->pending[i].from);
        free(folder->pending[i].to);
    }
    folder->pending_count = 0;
}

static void change_folder(tree *t, int folder, const char *from, const char *to,
                          int node)
{
    inode *f = &t->list[folder];

    f->pending = get_memory(f->pending, (size_t)(f->pending_count + 1) *
                                            sizeof *f->pending);
    f->pending[f->pending_count] =
        (change){ from != NULL ? strdup(from) : NULL,
                  to != NULL ? strdup(to) : NULL, node };
    apply_change(&f->names, &f->pending[f->pending_count++]);
}

static void write_bytes(inode *file, const void *data, size_t count, size_t at)
{
    if (at + count > file->now.count) {
        file->now.data = get_memory(file->now.data, at + count);
        if (at > file->now.count)
            memset(file->now.data + file->now.count, 0, at - file->now.count);
        file->now.count = at + count;
    }
    if (count > 0)
        memcpy(file->now.data + at, data, count);
}

static void sync_inode(inode *node)
{
    if (node->folder) {
        copy_names(&node->kept_names, &node->names);
        forget_changes(node);
        return;
    }
    free(node->durable.data);
    node->durable.data = copy_memory(node->now.data, node->now.count);
    node->durable.count = node->now.count;
}

static void free_tree(tree *t)
{
    for (int i = 0; i < t->count; i++) {
        inode *node = &t->list[i];
        entries none = { NULL, 0 };

        forget_changes(node);
        copy_names(&node->names, &none);
        copy_names(&node->kept_names, &none);
        free(node->names.list);
        free(node->kept_names.list);
        free(node->pending);
        free(node->now.data);
        free(node->durable.data);
    }
    free(t->list);
}

/* ---- the log ------------------------------------------------------------- */

typedef enum call_kind {
    CALL_MAKE_FOLDER,
    CALL_MAKE_FILE,
    CALL_WRITE,
    CALL_SYNC,
    CALL_RENAME,
    CALL_REMOVE,
    CALL_PROMISE
} call_kind;

typedef struct call {
    call_kind kind;
    int inode;
    char *from, *to; /* names */
    bytes data;
    int64_t number; /* the place of a write, or a promise */
} call;

struct model_disk {
    oari_disk table;
    pthread_mutex_t lock;
    tree tree;
    call *log;
    int calls;
    model_mistake mistake;
};

/* Does what a call of the log says. */
static void do_call(tree *t, const call *c)
{
    inode *node = &t->list[c->inode];
    int made;

    switch (c->kind) {
    case CALL_MAKE_FOLDER:
    case CALL_MAKE_FILE:
        made = add_inode(t, c->kind == CALL_MAKE_FOLDER);
        change_folder(t, c->inode, NULL, c->to, made);
        break;
    case CALL_WRITE:
        write_bytes(node, c->data.data, c->data.count, (size_t)c->number);
        break;
    case CALL_SYNC: sync_inode(node); break;
    case CALL_RENAME:
        made = node->names.list[find_name(&node->names, c->from)].inode;
        change_folder(t, c->inode, c->from, c->to, made);
        break;
    case CALL_REMOVE: change_folder(t, c->inode, c->from, NULL, 0); break;
    case CALL_PROMISE: break;
    }
}

static void log_call(model_disk *d, call c)
{
    c.from = c.from != NULL ? strdup(c.from) : NULL;
    c.to = c.to != NULL ? strdup(c.to) : NULL;
    if (c.kind == CALL_WRITE)
        c.data.data = copy_memory(c.data.data, c.data.count);
    d->log = get_memory(d->log, (size_t)(d->calls + 1) * sizeof *d->log);
    d->log[d->calls++] = c;
    do_call(&d->tree, &c);
}

/* ---- the table ----------------------------------------------------------- */

static model_disk *lock_disk(const oari_disk *disk)
{
    model_disk *d = (model_disk *)(uintptr_t)disk;

    pthread_mutex_lock(&d->lock);
    return d;
}

/* Ends a call: gives its result, or -1 and an errno. */
static int end_call(model_disk *d, int error, int result)
{
    pthread_mutex_unlock(&d->lock);
    errno = error;
    return error != 0 ? -1 : result;
}

/* Walks down a path, or to one name in a folder. Gives the folder that holds
 * its last component, which is left in `last`; last is "" for the root. */
static int find_parent(const model_disk *d, int at, const char *path,
                       char last[NAME_MAX + 1])
{
    int folder = at == AT_FDCWD ? 0 : at - FIRST_FD;

    last[0] = '\0';
    while (*path != '\0') {
        size_t length = strcspn(path, "/");
        int found;

        if (length == 0 || (length == 1 && path[0] == '.')) {
            path += length + (path[length] == '/');
            continue;
        }
        if (last[0] != '\0') {
            found = find_name(&d->tree.list[folder].names, last);
            if (found < 0)
                return -1;
            folder = d->tree.list[folder].names.list[found].inode;
        }
        snprintf(last, NAME_MAX + 1, "%.*s", (int)length, path);
        path += length + (path[length] == '/');
    }
    return folder;
}

/* Gives the inode of a path, or -1; and its folder and name. */
static int find_inode(const model_disk *d, int at, const char *path,
                      int *folder, char last[NAME_MAX + 1])
{
    int found;

    *folder = find_parent(d, at, path, last);
    if (*folder < 0 || last[0] == '\0')
        return *folder;
    found = find_name(&d->tree.list[*folder].names, last);
    return found < 0 ? -1 : d->tree.list[*folder].names.list[found].inode;
}

static int model_open_folder(const oari_disk *disk, int at, const char *name)
{
    model_disk *d = lock_disk(disk);
    char last[NAME_MAX + 1];
    int folder, node = find_inode(d, at, name, &folder, last);
    int error = node < 0 ? ENOENT : d->tree.list[node].folder ? 0 : ENOTDIR;

    return end_call(d, error, node + FIRST_FD);
}

static int model_make_folder(const oari_disk *disk, int at, const char *name)
{
    model_disk *d = lock_disk(disk);
    char last[NAME_MAX + 1];
    int folder, node = find_inode(d, at, name, &folder, last);
    int error = folder < 0 ? ENOENT : node >= 0 ? EEXIST : 0;

    if (error == 0)
        log_call(
            d, (call){ .kind = CALL_MAKE_FOLDER, .inode = folder, .to = last });
    return end_call(d, error, 0);
}

static int model_open_file(const oari_disk *disk, int at, const char *name,
                           int how)
{
    model_disk *d = lock_disk(disk);
    char last[NAME_MAX + 1];
    int folder, node = find_inode(d, at, name, &folder, last), error = 0;

    if (how & OARI_DISK_DIRECT)
        error = EINVAL; /* as tmpfs says */
    else if (node >= 0 && (how & OARI_DISK_CREATE))
        error = EEXIST;
    else if (node >= 0 && d->tree.list[node].folder)
        error = EISDIR;
    else if (folder < 0 ||
             (node < 0 && !(how & (OARI_DISK_CREATE | OARI_DISK_SHARED))))
        error = ENOENT;
    if (error == 0 && node < 0) {
        node = d->tree.count;
        log_call(d,
                 (call){ .kind = CALL_MAKE_FILE, .inode = folder, .to = last });
    }
    return end_call(d, error, node + FIRST_FD);
}

static ssize_t model_write_at(const oari_disk *disk, int fd, const void *data,
                              size_t count, off_t at)
{
    model_disk *d = lock_disk(disk);

    log_call(d, (call){ .kind = CALL_WRITE,
                        .inode = fd - FIRST_FD,
                        .data = { (char *)(uintptr_t)data, count },
                        .number = at });
    end_call(d, 0, 0);
    return (ssize_t)count;
}

static ssize_t model_read_at(const oari_disk *disk, int fd, void *data,
                             size_t count, off_t at)
{
    model_disk *d = lock_disk(disk);
    const bytes *now = &d->tree.list[fd - FIRST_FD].now;
    size_t left = (size_t)at < now->count ? now->count - (size_t)at : 0;

    if (count > left)
        count = left;
    if (count > 0)
        memcpy(data, now->data + at, count);
    end_call(d, 0, 0);
    return (ssize_t)count;
}

static int model_set_direct(const oari_disk *disk, int fd, int on)
{
    (void)disk;
    (void)fd;
    errno = EINVAL;
    return on ? -1 : 0;
}

static void model_flush(const oari_disk *disk, int fd, off_t at, off_t count,
                        int drop)
{
    (void)disk;
    (void)fd;
    (void)at;
    (void)count;
    (void)drop;
}

/* The name of an inode in the folder that holds it; "" for the root. */
static const char *name_of(const tree *t, int node, int *folder)
{
    for (int i = 0; i < t->count; i++)
        for (int k = 0; t->list[i].folder && k < t->list[i].names.count; k++)
            if (t->list[i].names.list[k].inode == node) {
                *folder = i;
                return t->list[i].names.list[k].name;
            }
    *folder = -1;
    return "";
}

/* Returns whether the disk makes the mistake of not syncing this. */
static int is_left_out(const model_disk *d, int node)
{
    const inode *n = &d->tree.list[node];
    int folder, above;
    const char *name = name_of(&d->tree, node, &folder);
    int index = strcmp(name, "index.json") == 0;

    if (folder > 0)
        (void)name_of(&d->tree, folder, &above);
    else
        above = -1;
    switch (d->mistake) {
    case MODEL_FILES_NOT_SYNCED: return !n->folder && !index;
    case MODEL_INDEX_NOT_SYNCED: return index;
    case MODEL_PART_NOT_SYNCED: return n->folder && folder > 0;
    case MODEL_PARENT_NOT_SYNCED: return n->folder && folder == 0;
    case MODEL_FOLDERS_NOT_SYNCED: return n->folder;
    default: return 0;
    }
}

static int model_sync(const oari_disk *disk, int fd)
{
    model_disk *d = lock_disk(disk);

    if (!is_left_out(d, fd - FIRST_FD))
        log_call(d, (call){ .kind = CALL_SYNC, .inode = fd - FIRST_FD });
    return end_call(d, 0, 0);
}

static int model_rename(const oari_disk *disk, int at, const char *from,
                        const char *to)
{
    model_disk *d = lock_disk(disk);
    char last[NAME_MAX + 1], target_name[NAME_MAX + 1];
    int folder, same;
    int node = find_inode(d, at, from, &folder, last);
    int target = find_inode(d, at, to, &same, target_name);
    int error = node < 0 ? ENOENT
                : target >= 0 && d->tree.list[target].folder &&
                        d->tree.list[target].names.count > 0
                    ? ENOTEMPTY
                    : 0;

    if (error == 0)
        log_call(d, (call){ .kind = CALL_RENAME,
                            .inode = folder,
                            .from = last,
                            .to = target_name });
    return end_call(d, error, 0);
}

static int model_remove(const oari_disk *disk, int at, const char *name,
                        int folder)
{
    model_disk *d = lock_disk(disk);
    char last[NAME_MAX + 1];
    int parent, node = find_inode(d, at, name, &parent, last);
    int error = node < 0                                   ? ENOENT
                : folder && !d->tree.list[node].folder     ? ENOTDIR
                : !folder && d->tree.list[node].folder     ? EISDIR
                : folder && d->tree.list[node].names.count ? ENOTEMPTY
                                                           : 0;

    if (error == 0)
        log_call(d,
                 (call){ .kind = CALL_REMOVE, .inode = parent, .from = last });
    return end_call(d, error, 0);
}

static int model_list(const oari_disk *disk, int fd, oari_disk_name_fn *fn,
                      void *arg)
{
    model_disk *d = lock_disk(disk);
    const entries *names = &d->tree.list[fd - FIRST_FD].names;
    entries copy = { NULL, 0 };

    copy_names(&copy, names);
    end_call(d, 0, 0);
    for (int i = 0; i < copy.count; i++)
        if (fn(arg, copy.list[i].name) != 0)
            break;
    while (copy.count > 0)
        drop_name(&copy, copy.list[0].name);
    free(copy.list);
    return 0;
}

static int model_size(const oari_disk *disk, int fd, off_t *count)
{
    model_disk *d = lock_disk(disk);
    const inode *node = &d->tree.list[fd - FIRST_FD];

    *count = (off_t)node->now.count;
    return end_call(d, node->folder ? EISDIR : 0, 0);
}

static int model_free_bytes(const oari_disk *disk, int fd, uint64_t *count)
{
    (void)disk;
    (void)fd;
    *count = UINT64_MAX / 2;
    return 0;
}

static int model_lock(const oari_disk *disk, int fd)
{
    (void)disk;
    (void)fd;
    return 0;
}

static int model_close(const oari_disk *disk, int fd)
{
    (void)disk;
    (void)fd;
    return 0;
}

/* ---- making -------------------------------------------------------------- */

model_disk *model_disk_create(void)
{
    model_disk *d = get_memory(NULL, sizeof *d);

    *d = (model_disk){ .table = { .open_folder = model_open_folder,
                                  .make_folder = model_make_folder,
                                  .open_file = model_open_file,
                                  .write_at = model_write_at,
                                  .read_at = model_read_at,
                                  .set_direct = model_set_direct,
                                  .flush = model_flush,
                                  .sync = model_sync,
                                  .rename = model_rename,
                                  .remove = model_remove,
                                  .list = model_list,
                                  .size = model_size,
                                  .free_bytes = model_free_bytes,
                                  .lock = model_lock,
                                  .close = model_close } };
    pthread_mutex_init(&d->lock, NULL);
    add_inode(&d->tree, 1);
    return d;
}

void model_disk_destroy(model_disk *d)
{
    for (int i = 0; i < d->calls; i++) {
        free(d->log[i].from);
        free(d->log[i].to);
        free(d->log[i].data.data);
    }
    free(d->log);
    free_tree(&d->tree);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

const oari_disk *model_disk_table(const model_disk *disk)
{
    return &disk->table;
}

void model_disk_promise(model_disk *d, int64_t number)
{
    lock_disk(&d->table);
    log_call(d, (call){ .kind = CALL_PROMISE, .number = number });
    end_call(d, 0, 0);
}

void model_disk_mistake(model_disk *d, model_mistake mistake)
{
    d->mistake = mistake;
}

/* ---- the states ---------------------------------------------------------- */

typedef enum file_state { OLD, NEW, HALF, ZEROS, TORN, FILE_STATES } file_state;

/* What a power failure may leave: for each folder with changes a set of them,
 * for each file that is not synced how much of it. */
typedef struct failure {
    const tree *tree;
    uint64_t *changes; /* of each inode: bit i is change i */
    file_state *file;  /* of each inode */
} failure;

static bytes left_of(const inode *file, file_state state)
{
    size_t kept = state == HALF   ? file->now.count / 2
                  : state == TORN ? (file->now.count - 1) / PAGE * PAGE
                                  : 0;
    bytes b;

    if (state == OLD || state == NEW) {
        const bytes *from = state == OLD ? &file->durable : &file->now;

        return (bytes){ copy_memory(from->data, from->count), from->count };
    }
    b.count = state == HALF ? kept : file->now.count;
    b.data = copy_memory(file->now.data, b.count);
    if (state != HALF)
        memset(b.data + kept, 0, b.count - kept);
    return b;
}

/* Builds what is left of a folder and all below it. */
static void build_folder(model_disk *d, int to, const failure *f, int from)
{
    const inode *folder = &f->tree->list[from];
    entries left = { NULL, 0 };

    copy_names(&left, &folder->kept_names);
    for (int i = 0; i < folder->pending_count; i++)
        if (f->changes[from] >> i & 1)
            apply_change(&left, &folder->pending[i]);
    for (int i = 0; i < left.count; i++) {
        int child = left.list[i].inode;
        int made = add_inode(&d->tree, f->tree->list[child].folder);

        set_name(&d->tree.list[to].names, left.list[i].name, made);
        set_name(&d->tree.list[to].kept_names, left.list[i].name, made);
        if (d->tree.list[made].folder) {
            build_folder(d, made, f, child);
        } else {
            d->tree.list[made].now =
                left_of(&f->tree->list[child], f->file[child]);
            sync_inode(&d->tree.list[made]);
        }
    }
    while (left.count > 0)
        drop_name(&left, left.list[0].name);
    free(left.list);
}

typedef struct walk {
    failure failure;
    model_state_fn *fn;
    void *arg;
    int64_t promised;
    long states;
    uint64_t leaf, ratio; /* states of this call so far; one of ratio is looked
                             at; 0: they are only counted */
    int dirty[64], dirty_count;     /* files */
    int changed[64], changed_count; /* folders */
} walk;

static void show_state(walk *w)
{
    uint64_t mixed = ++w->leaf * 0x9e3779b97f4a7c15u;
    model_disk *d;

    if (w->ratio == 0 || (w->ratio > 1 && (mixed >> 32) % w->ratio != 0))
        return;
    d = model_disk_create();
    build_folder(d, 0, &w->failure, 0);
    w->fn(w->arg, &d->table, w->promised);
    w->states++;
    model_disk_destroy(d);
}

/* Goes through what is left of the files: each for itself where there are few,
 * else all of them alike. */
static void walk_files(walk *w, int index)
{
    if (w->dirty_count > 3) {
        for (int s = 0; s < FILE_STATES; s++) {
            for (int i = 0; i < w->dirty_count; i++)
                w->failure.file[w->dirty[i]] = (file_state)s;
            show_state(w);
        }
        return;
    }
    if (index == w->dirty_count) {
        show_state(w);
        return;
    }
    for (int s = 0; s < FILE_STATES; s++) {
        w->failure.file[w->dirty[index]] = (file_state)s;
        walk_files(w, index + 1);
    }
}

/* Goes through what is left of the changes of folders: every subset of a few,
 * else the first ones, single ones, and all but single ones. */
static void walk_folders(walk *w, int index)
{
    uint64_t *set, all;
    int count;

    if (index == w->changed_count) {
        walk_files(w, 0);
        return;
    }
    count = w->failure.tree->list[w->changed[index]].pending_count;
    set = &w->failure.changes[w->changed[index]];
    all = (1ull << count) - 1;
    if (count <= ALL_SUBSETS) {
        for (*set = 0; *set <= all; ++*set)
            walk_folders(w, index + 1);
        return;
    }
    for (int i = 0; i <= count; i++) {
        *set = (1ull << i) - 1;
        walk_folders(w, index + 1);
        if (i == count)
            break;
        *set = 1ull << i;
        walk_folders(w, index + 1);
        *set = all & ~(1ull << i);
        walk_folders(w, index + 1);
    }
}

static int is_dirty(const inode *file)
{
    return file->now.count != file->durable.count ||
           (file->now.count > 0 &&
            memcmp(file->now.data, file->durable.data, file->now.count) != 0);
}

static void walk_states(walk *w, const tree *t)
{
    w->failure = (failure){ t, calloc((size_t)t->count, sizeof(uint64_t)),
                            calloc((size_t)t->count, sizeof(file_state)) };
    w->dirty_count = w->changed_count = 0;
    for (int i = 0; i < t->count; i++) {
        const inode *node = &t->list[i];

        if (node->pending_count > 0 && w->changed_count < 64)
            w->changed[w->changed_count++] = i;
        if (!node->folder && is_dirty(node) && w->dirty_count < 64)
            w->dirty[w->dirty_count++] = i;
    }
    w->leaf = w->ratio = 0;
    walk_folders(w, 0);
    w->ratio = w->leaf / STATES_A_CALL + 1;
    w->leaf = 0;
    walk_folders(w, 0);
    free(w->failure.changes);
    free(w->failure.file);
}

long model_disk_each_state(const model_disk *disk, model_state_fn *fn,
                           void *arg)
{
    walk w = { .fn = fn, .arg = arg, .promised = -1 };
    tree t = { NULL, 0 };

    add_inode(&t, 1);
    walk_states(&w, &t);
    for (int i = 0; i < disk->calls; i++) {
        do_call(&t, &disk->log[i]);
        if (disk->log[i].kind == CALL_PROMISE)
            w.promised = disk->log[i].number;
        walk_states(&w, &t);
    }
    free_tree(&t);
    return w.states;
}
