/* SPDX-License-Identifier: Apache-2.0 */
/* metrics_page: writes the newest numbers of this process where others see
 * them.
 *
 * Before the first group there is no recorder file, and after the last there
 * may be none: the numbers are then kept in memory of our own. One lock guards
 * which page is written; readers take none, since each word is written whole.
 */
#include "record/metrics_page.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

static struct {
    pthread_mutex_t lock;
    oari_metrics_page own;   /* while there is no recorder file */
    oari_metrics_page *page; /* NULL: our own */
} mine = { .lock = PTHREAD_MUTEX_INITIALIZER };

void oari_metrics_before_fork(void)
{
    pthread_mutex_lock(&mine.lock);
}

void oari_metrics_in_parent(void)
{
    pthread_mutex_unlock(&mine.lock);
}

/* The mapping is the parent's only. */
void oari_metrics_in_child(void)
{
    mine.page = NULL;
    pthread_mutex_unlock(&mine.lock);
}

static oari_metrics_page *current_page(void)
{
    return mine.page != NULL ? mine.page : &mine.own;
}

static void copy_page(oari_metrics_page *to, const oari_metrics_page *from)
{
    atomic_store(&to->step, atomic_load(&from->step));
    atomic_store(&to->steps, atomic_load(&from->steps));
    atomic_store(&to->step_ticks, atomic_load(&from->step_ticks));
    atomic_store(&to->step_length, atomic_load(&from->step_length));
    for (int i = 0; i < OARI_METRICS; i++) {
        oari_metric_slot *t = &to->slot[i];
        const oari_metric_slot *f = &from->slot[i];

        memcpy(t->name, f->name, sizeof t->name);
        atomic_store(&t->value, atomic_load(&f->value));
        atomic_store(&t->count, atomic_load(&f->count));
        atomic_store(&t->ready, atomic_load(&f->ready));
    }
}

void oari_metrics_attach(oari_metrics_page *page)
{
    oari_metrics_page *before, *after;

    pthread_mutex_lock(&mine.lock);
    before = current_page();
    mine.page = page;
    after = current_page();
    if (before != after)
        copy_page(after, before);
    pthread_mutex_unlock(&mine.lock);
}

/* Returns the slot of a name, which is entered if it is new; NULL: all are
 * taken. */
static oari_metric_slot *find_slot(oari_metrics_page *page, const char *name)
{
    for (int i = 0; i < OARI_METRICS; i++) {
        oari_metric_slot *s = &page->slot[i];

        if (!atomic_load_explicit(&s->ready, memory_order_relaxed)) {
            snprintf(s->name, sizeof s->name, "%s", name);
            atomic_store_explicit(&s->ready, 1, memory_order_release);
            return s;
        }
        if (strncmp(s->name, name, sizeof s->name - 1) == 0)
            return s;
    }
    return NULL;
}

void oari_metrics_set(const char *name, double value)
{
    oari_metric_slot *s;
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    pthread_mutex_lock(&mine.lock);
    s = find_slot(current_page(), name);
    if (s != NULL) {
        atomic_store_explicit(&s->value, bits, memory_order_relaxed);
        atomic_fetch_add_explicit(&s->count, 1, memory_order_release);
    }
    pthread_mutex_unlock(&mine.lock);
}

void oari_metrics_step(int64_t step)
{
    oari_metrics_page *p;
    uint64_t now = oari_ticks(), last;

    pthread_mutex_lock(&mine.lock);
    p = current_page();
    last = atomic_load(&p->step_ticks);
    atomic_store(&p->step, step);
    atomic_store(&p->step_length, last != 0 ? now - last : 0);
    atomic_store(&p->step_ticks, now);
    atomic_fetch_add(&p->steps, 1);
    pthread_mutex_unlock(&mine.lock);
}
