/* SPDX-License-Identifier: Apache-2.0 */
/* record/account.h: what a rank says of its collectives when ranks disagree,
 * and what is made of what they say. Accounts travel as they are: all ranks of
 * a group have one byte order. Bytes of a peer's account are checked by
 * oari_account_check before anything else looks at them. */
#ifndef OARI_RECORD_ACCOUNT_H
#define OARI_RECORD_ACCOUNT_H

#include "record/history.h"
#include "record/recorder.h"

enum { OARI_TOLD = 16, OARI_TOLD_PARTS = 64 };

/* Counts of the parts of a collective, where they are not too many. */
typedef struct oari_told_parts {
    uint64_t number; /* of the collective; 0: none */
    uint64_t count;  /* of the parts */
    uint64_t part[OARI_TOLD_PARTS];
} oari_told_parts;

/* One collective of a rank. */
typedef struct oari_told {
    uint64_t number; /* 0: not begun, or not known any more */
    uint64_t link;
    uint64_t sequence, count;
    int32_t kind, op, dtype, root;
    uint32_t form; /* OARI_FORM_ bits */
    char site[96]; /* "": not known any more */
    char label[64];
} oari_told;

typedef enum oari_account_kind {
    OARI_ASKS = 1, /* waits; wants to know what the other does */
    OARI_ANSWERS,
    OARI_DISPUTES /* is sure that ranks disagree, or has heard of one that is */
} oari_account_kind;

typedef struct oari_account {
    uint64_t number; /* of the collective it is about; the newest told */
    uint64_t newest; /* that the rank has begun */
    uint32_t kind;   /* oari_account_kind */
    int32_t rank;
    int32_t about;      /* a claim: the rank it is about; -1: no claim */
    uint32_t elsewhere; /* `last` is on another group */
    uint64_t wants;     /* the tag of a message of the other's, or 0; echoed */
    int64_t pid;
    char host[64];
    char claim[176]; /* one sentence, without call sites */
    char sent[160];  /* an answer: where that message was sent */
    char last[240];  /* the rank's newest operation of any kind; "": none */
    oari_told_parts parts;     /* of its newest collective that has some */
    oari_told told[OARI_TOLD]; /* number - OARI_TOLD + 1 and so on */
} oari_account;

/* Fills in everything but kind, about, claim, last and parts. */
void oari_account_make(const oari_history *history, const void *recorder,
                       int rank, uint64_t number, oari_account *account);

/* Keeps the counts of a collective's parts, if they are not too many. */
void oari_told_parts_keep(oari_told_parts *parts, uint64_t number,
                          const size_t *counts, int ranks);

/* 1: it is what it must be, from that rank. Ends its texts. */
int oari_account_check(oari_account *account, int rank, int ranks);

/* The number of the first collective on which both tell something and differ;
 * 0: none. */
uint64_t oari_account_differs(const oari_account *a, const oari_account *b);

/* What comes of the accounts of all ranks about one number (by rank; NULL: not
 * known): the first collective on which two differ, else the claim of the
 * lowest rank. The record is a function of the accounts, so all ranks that have
 * them get the same. 0: nothing. */
int oari_accounts_judge(const oari_account *const *account, int ranks,
                        oar_error *record);

/* Writes `#12 all_reduce of 17 f32 sum at a.c:31 ("loss")`. */
void oari_record_text(const oar_record *record, char *text, size_t bytes);

#endif
