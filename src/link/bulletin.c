/* SPDX-License-Identifier: Apache-2.0 */
/* bulletin: see bulletin.h. All accesses are sequentially consistent: facts
 * change rarely, and the proof that a reader sees one complete copy is short. A
 * writer overwrites the copy of number n only after it has stored number n + 1;
 * so a reader that finds n before and after its copying has copied number n. */
#include "link/bulletin.h"

#include <string.h>

#include "link/link.h"

enum { TRIES = 64 }; /* the writer would have to write at each of them */

size_t oari_fact_bytes(uint64_t fact)
{
    static const size_t bytes[OARI_FACTS] = {
#define X(name, size) [name] = (size),
        OARI_FACT_LIST(X)
#undef X
    };

    return fact < OARI_FACTS ? bytes[fact] : 0;
}

void oari_bulletin_write(oari_bulletin *bulletin, oari_fact fact,
                         const void *data)
{
    oari_fact_slot *s = &bulletin->slot[fact];
    uint64_t next = atomic_load(&s->sequence) + 1;
    size_t left = oari_fact_bytes(fact);
    const unsigned char *at = data;

    for (size_t i = 0; left != 0; i++) {
        uint64_t word = 0;
        size_t part = left < sizeof word ? left : sizeof word;

        memcpy(&word, at, part);
        atomic_store(&s->word[next % 2][i], word);
        at += part;
        left -= part;
    }
    atomic_store(&s->sequence, next);
}

int oari_bulletin_write_once(oari_bulletin *bulletin, oari_fact fact,
                             const void *data)
{
    uint64_t unclaimed = 0;

    if (!atomic_compare_exchange_strong(&bulletin->slot[fact].claimed,
                                        &unclaimed, 1))
        return 0;
    oari_bulletin_write(bulletin, fact, data);
    return 1;
}

int oari_bulletin_read(const oari_bulletin *bulletin, oari_fact fact,
                       void *data)
{
    const oari_fact_slot *s = &bulletin->slot[fact];

    for (int i = 0; i < TRIES; i++) {
        uint64_t copy[OARI_FACT_WORDS], found = atomic_load(&s->sequence);

        if (found == 0)
            return 0;
        for (size_t w = 0; w < (oari_fact_bytes(fact) + 7) / 8; w++)
            copy[w] = atomic_load(&s->word[found % 2][w]);
        if (atomic_load(&s->sequence) == found) {
            memcpy(data, copy, oari_fact_bytes(fact));
            return 1;
        }
    }
    return 0;
}

int oari_bulletin_write_fault(oari_bulletin *bulletin, oari_fact fact,
                              const oari_fault *fault)
{
    unsigned char raw[OARI_FAULT_BYTES];

    oari_fault_write(fault, raw);
    return oari_bulletin_write_once(bulletin, fact, raw);
}

int oari_bulletin_read_fault(const oari_bulletin *bulletin, oari_fact fact,
                             oari_fault *fault)
{
    unsigned char raw[OARI_FAULT_BYTES];

    if (!oari_bulletin_read(bulletin, fact, raw))
        return 0;
    oari_fault_read(raw, fault);
    return 1;
}

/* ---- which of two faults counts ------------------------------------------ */

int oari_fault_sure(const oari_fault *fault)
{
    return fault->evidence != OARI_EVIDENCE_TIMEOUT;
}

int oari_fault_before(const oari_fault *a, const oari_fault *b)
{
    if (oari_fault_sure(a) != oari_fault_sure(b))
        return oari_fault_sure(a);
    if (a->error.sequence != b->error.sequence)
        return a->error.sequence < b->error.sequence;
    if (a->error.rank != b->error.rank)
        return a->error.rank < b->error.rank;
    return strcmp(a->error.text, b->error.text) < 0;
}
