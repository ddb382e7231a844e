/* SPDX-License-Identifier: Apache-2.0 */
/* comm/recorder_view.h: what oari_recorder_base points to. */
#ifndef OARI_COMM_RECORDER_VIEW_H
#define OARI_COMM_RECORDER_VIEW_H

#include "comm/box.h"

/* A ring, as long as it has that serial number: then it is another group's. */
typedef struct oari_view {
    const oari_ring *ring;
    uint64_t serial;
} oari_view;

#endif
