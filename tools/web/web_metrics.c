/* SPDX-License-Identifier: Apache-2.0 */
/* web_metrics: what the live page shows, in the text format of Prometheus. */
#include "web_metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *key, *type, *help;
} series[] = {
    { "oarsong_operations_total", "operations", "counter",
      "Collectives and messages so far." },
    { "oarsong_operations_per_second", "operations_s", "gauge",
      "Collectives and messages a second." },
    { "oarsong_bytes_per_second", "bytes_s", "gauge",
      "Bytes of collectives and messages a second." },
    { "oarsong_waiting_ratio", "waiting", "gauge",
      "Share of time in which the program waits for operations." },
    { "oarsong_missing_ranks", "missing", "gauge",
      "Ranks that have not called the operation this rank waits in." },
    { "oarsong_operation_age_seconds", "age_s", "gauge",
      "Time since the newest operation began or ended." },
    { "oarsong_step", "step", "gauge", "Number of the last training step." },
    { "oarsong_steps_total", "steps", "counter", "Training steps so far." },
    { "oarsong_step_seconds", "step_s", "gauge",
      "How long the last training step took." },
    { "oarsong_memory_bytes", "memory_bytes", "gauge", "Resident memory." },
};

/* Writes a label's value. */
static void put_label(FILE *to, const char *text)
{
    for (; text != NULL && *text != 0; text++)
        if (*text == '\n')
            fputs("\\n", to);
        else if (*text == '"' || *text == '\\')
            fprintf(to, "\\%c", *text);
        else
            putc(*text, to);
}

static void put_labels(FILE *to, const json_t *rank)
{
    fprintf(to, "{rank=\"%lld\",host=\"",
            (long long)json_integer_value(json_object_get(rank, "rank")));
    put_label(to, json_string_value(json_object_get(rank, "host")));
    fprintf(to, "\"");
}

static void put_series(FILE *to, const json_t *ranks, size_t which)
{
    json_t *rank;
    size_t i;

    fprintf(to, "# HELP %s %s\n# TYPE %s %s\n", series[which].name,
            series[which].help, series[which].name, series[which].type);
    json_array_foreach(ranks, i, rank)
    {
        json_t *value = json_object_get(rank, series[which].key);

        if (!json_is_number(value))
            continue;
        fputs(series[which].name, to);
        put_labels(to, rank);
        fprintf(to, "} %.17g\n", json_number_value(value));
    }
}

static void put_alive(FILE *to, const json_t *ranks)
{
    json_t *rank;
    size_t i;

    fprintf(to, "# HELP oarsong_rank_up Whether the rank runs.\n"
                "# TYPE oarsong_rank_up gauge\n");
    json_array_foreach(ranks, i, rank)
    {
        const char *state = json_string_value(json_object_get(rank, "state"));

        if (state == NULL || strcmp(state, "unknown") == 0)
            continue;
        fputs("oarsong_rank_up", to);
        put_labels(to, rank);
        fprintf(to, "} %d\n",
                strcmp(state, "running") == 0 || strcmp(state, "starts") == 0);
    }
}

static void put_own(FILE *to, const json_t *ranks)
{
    json_t *rank, *value;
    const char *name;
    size_t i;

    fprintf(to, "# HELP oarsong_metric Numbers of the program's own.\n"
                "# TYPE oarsong_metric gauge\n");
    json_array_foreach(ranks, i, rank)
    {
        json_object_foreach(json_object_get(rank, "metrics"), name, value)
        {
            fputs("oarsong_metric", to);
            put_labels(to, rank);
            fputs(",name=\"", to);
            put_label(to, name);
            if (json_is_number(value))
                fprintf(to, "\"} %.17g\n", json_number_value(value));
            else
                fprintf(to, "\"} NaN\n");
        }
    }
}

char *web_metrics_text(const json_t *all)
{
    const json_t *ranks = json_object_get(all, "ranks");
    char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);

    if (to == NULL)
        return NULL;
    put_alive(to, ranks);
    for (size_t i = 0; i < sizeof series / sizeof *series; i++)
        put_series(to, ranks, i);
    put_own(to, ranks);
    if (fclose(to) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
