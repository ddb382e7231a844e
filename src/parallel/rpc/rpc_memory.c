/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: memory of large arrays and of messages. The lock guards blocks; a flag
 * guards messages, and a thread that finds it set does without them. */
#include "parallel/rpc/rpc_memory.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/list.h"
#include "parallel/rpc/rpc_message.h"

enum {
    KEPT_FROM = 128 << 10,  /* bytes of a block that is worth keeping */
    MOST_BYTES = 192 << 20, /* of all that are kept */
    MOST_MESSAGES = 256     /* that are kept */
};

typedef struct block {
    oari_link link;
    size_t bytes;
    _Alignas(64) unsigned char data[];
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static oari_list kept; /* the latest last */
static size_t kept_bytes;
static atomic_int agents;

static atomic_flag messages_busy = ATOMIC_FLAG_INIT;
static void *message; /* whose first word points to the next */
static int messages;

/* Frees the oldest blocks until so many bytes are left; with the lock. */
static void trim(size_t most)
{
    while (kept_bytes > most) {
        block *b = OARI_CONTAINER_OF(oari_list_take(&kept), block, link);

        kept_bytes -= b->bytes;
        oari_free(b);
    }
}

/* Takes a message that is kept; with the flag. NULL: there is none. */
static void *pop_message(void)
{
    void *taken = message;

    if (taken != NULL) {
        memcpy(&message, taken, sizeof message);
        messages--;
    }
    return taken;
}

/* A message that is given back later finds that there is no agent. */
static void free_messages(void)
{
    void *kept_message;

    while (atomic_flag_test_and_set(&messages_busy))
        sched_yield();
    while ((kept_message = pop_message()) != NULL)
        oari_free(kept_message);
    atomic_flag_clear(&messages_busy);
}

oar_rpc_message *oari_rpc_memory_take_message(void)
{
    void *taken = NULL;

    if (!atomic_flag_test_and_set_explicit(&messages_busy,
                                           memory_order_acquire)) {
        taken = pop_message();
        atomic_flag_clear_explicit(&messages_busy, memory_order_release);
    }
    return taken != NULL ? taken
                         : oari_alloc_aligned(_Alignof(oar_rpc_message),
                                              sizeof(oar_rpc_message));
}

void oari_rpc_memory_give_message(oar_rpc_message *given)
{
    int keep = 0;

    if (!atomic_flag_test_and_set_explicit(&messages_busy,
                                           memory_order_acquire)) {
        keep = atomic_load(&agents) > 0 && messages < MOST_MESSAGES;
        if (keep) {
            memcpy(given, &message, sizeof message);
            message = given;
            messages++;
        }
        atomic_flag_clear_explicit(&messages_busy, memory_order_release);
    }
    if (!keep)
        oari_free(given);
}

void oari_rpc_memory_open(void)
{
    pthread_mutex_lock(&lock);
    atomic_fetch_add(&agents, 1);
    pthread_mutex_unlock(&lock);
}

void oari_rpc_memory_close(void)
{
    pthread_mutex_lock(&lock);
    if (atomic_fetch_sub(&agents, 1) == 1) {
        trim(0);
        free_messages();
    }
    pthread_mutex_unlock(&lock);
}

static void give_back(void *arg)
{
    block *b = arg;

    pthread_mutex_lock(&lock);
    oari_list_append(&kept, &b->link);
    kept_bytes += b->bytes;
    trim(atomic_load(&agents) > 0 ? MOST_BYTES : 0);
    pthread_mutex_unlock(&lock);
}

/* Takes a block out that has room, and not much more; NULL: there is none. */
static block *take_kept(size_t bytes)
{
    block *found = NULL;

    pthread_mutex_lock(&lock);
    for (oari_link *l = kept.last; l != NULL && found == NULL; l = l->prev) {
        block *b = OARI_CONTAINER_OF(l, block, link);

        if (b->bytes >= bytes && b->bytes - bytes <= bytes / 4)
            found = b;
    }
    if (found != NULL) {
        oari_list_remove(&kept, &found->link);
        kept_bytes -= found->bytes;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

oar_status oari_rpc_memory_take(size_t bytes, oar_storage **storage)
{
    oar_storage *made;
    oar_status status;
    block *b;

    if (bytes < KEPT_FROM)
        return oar_storage_create(bytes, 0, storage);
    b = take_kept(bytes);
    if (b == NULL) {
        b = oari_alloc_aligned(_Alignof(block), sizeof *b + bytes);
        if (b == NULL)
            return OAR_E_NOMEM;
        b->bytes = bytes;
    }
    status = oar_storage_create_detached(bytes, 0, &made);
    if (status == OAR_OK) {
        status = oar_storage_attach(made, b->data, give_back, b);
        if (status != OAR_OK)
            oar_storage_release(made);
    }
    if (status != OAR_OK) {
        oari_free(b);
        return status;
    }
    *storage = made;
    return OAR_OK;
}
