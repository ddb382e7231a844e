/* SPDX-License-Identifier: Apache-2.0 */
/* record/op_report.h: operation reports. When ranks disagree, each reports its
 * collectives to the others, and the error is made from the reports. Reports
 * travel as they are: all ranks of a group have one byte order. The bytes of a
 * peer's report are checked by oari_op_report_check before anything else reads
 * them. */
#ifndef OARI_RECORD_OP_REPORT_H
#define OARI_RECORD_OP_REPORT_H

#include "record/history.h"
#include "record/recorder.h"

enum { OARI_REPORT_ENTRIES = 16, OARI_REPORT_PARTS = 64 };

/* The counts of the parts of a collective, unless there are too many. */
typedef struct oari_report_parts {
    uint64_t number; /* of the collective; 0: none */
    uint64_t count;  /* of the parts */
    uint64_t part[OARI_REPORT_PARTS];
} oari_report_parts;

/* An entry of a report: one collective of a rank. */
typedef struct oari_report_entry {
    uint64_t number; /* 0: not begun, or no longer recorded */
    uint64_t link;
    uint64_t sequence, count;
    int32_t kind, op, dtype, root;
    uint32_t form; /* OARI_FORM_ bits */
    uint64_t key;  /* 0: none */
    char site[96]; /* "": no longer recorded */
    char label[64];
} oari_report_entry;

typedef enum oari_op_report_kind {
    OARI_REPORT_ASKS = 1, /* the rank waits, and asks what the other does */
    OARI_REPORT_ANSWERS,
    OARI_REPORT_MISMATCH /* the rank knows that ranks differ */
} oari_op_report_kind;

typedef struct oari_op_report {
    uint64_t number; /* of the collective it is about: its newest entry */
    uint64_t newest; /* number that the rank has begun */
    uint64_t monitored_count;  /* monitored barriers that the rank has begun */
    uint64_t monitored_number; /* of the one it waits in; 0: none */
    uint32_t kind;             /* oari_op_report_kind */
    int32_t rank;
    int32_t about;      /* a claim: the rank it is about; -1: no claim */
    uint32_t elsewhere; /* `last` is on another group */
    uint64_t wants; /* the tag of a message of the other rank, or 0; echoed */
    int64_t pid;
    char host[64];
    char claim[176]; /* one sentence, without call sites */
    char sent[160];  /* an answer: where that message was sent */
    char last[240];  /* the rank's newest operation of any kind; "": none */
    oari_report_parts parts; /* of the rank's newest collective with parts */
    /* from number - OARI_REPORT_ENTRIES + 1 on */
    oari_report_entry told[OARI_REPORT_ENTRIES];
} oari_op_report;

/* Fills in a report, except kind, about, claim, last and parts. */
void oari_op_report_make(const oari_history *history, const void *recorder,
                         int rank, uint64_t number, oari_op_report *account);

/* Keeps the counts of a collective's parts, unless there are too many. */
void oari_report_parts_keep(oari_report_parts *parts, uint64_t number,
                            const size_t *counts, int ranks);

/* Returns whether a report from that rank is sound, and ends its texts. */
int oari_op_report_check(oari_op_report *account, int rank, int ranks);

/* Returns the number of the first collective that is in both reports and
 * differs, or 0. */
uint64_t oari_op_report_differs(const oari_op_report *a,
                                const oari_op_report *b);

/* Makes the error from the reports of all ranks about one number (by rank;
 * NULL: not known): about the first collective on which two differ, else the
 * claim of the lowest rank. The error is a function of the reports, so all
 * ranks that have the same reports get the same error. Returns 0 if there is
 * none. */
int oari_op_reports_compare(const oari_op_report *const *account, int ranks,
                            oar_error *record);

/* Writes `#12 all_reduce of 17 f32 sum at a.c:31 ("loss")`. */
void oari_record_text(const oar_record *record, char *text, size_t bytes);

#endif
