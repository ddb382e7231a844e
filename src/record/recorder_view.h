/* SPDX-License-Identifier: Apache-2.0 */
/* record/recorder_view.h: what oari_recorder_base points to. */
#ifndef OARI_RECORD_RECORDER_VIEW_H
#define OARI_RECORD_RECORDER_VIEW_H

#include "record/box.h"

/* A ring, as long as it has that serial number: then it is another group's. */
typedef struct oari_view {
    const oari_ring *ring;
    uint64_t serial;
} oari_view;

#endif
