/* SPDX-License-Identifier: Apache-2.0 */
/* web_metrics.h: a job for Prometheus. */
#ifndef OARSONG_TOOL_WEB_METRICS_H
#define OARSONG_TOOL_WEB_METRICS_H

#include <jansson.h>

/* Returns the text format 0.0.4 of what the page shows; free() frees it. */
char *web_metrics_text(const json_t *all);

#endif
