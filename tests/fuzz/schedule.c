/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of schedules. What is read is written the same after it was read again,
 * and what can run is drawn; nothing else is said about it. */
#include "fuzz.h"

#include <oarsong/memory.h>
#include <oarsong/schedule.h>

/* The text of a schedule; free it. */
static char *text_of(const oar_schedule *s, int all)
{
    size_t bytes = oar_schedule_text(s, all, NULL, 0) + 1;
    char *text = malloc(bytes);

    FUZZ_CHECK(text != NULL);
    FUZZ_CHECK(oar_schedule_text(s, all, text, bytes) == bytes - 1);
    return text;
}

/* A schedule without a message gets them when it is read: not with all. */
static void check_text(const oar_schedule *s, int all)
{
    char *text = text_of(s, all), *again;
    oar_schedule *read = NULL;

    if (text[strspn(text, "\n")] != '\0') {
        FUZZ_CHECK(oar_schedule_parse(text, strlen(text), NULL, &read) ==
                   OAR_OK);
        again = text_of(read, all);
        FUZZ_CHECK(strncmp(text, again, strlen(again)) == 0);
        FUZZ_CHECK(text[strlen(again) + strspn(text + strlen(again), "\n")] ==
                   '\0'); /* rows that are empty, at the end */
        free(again);
        oar_schedule_release(read);
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = fuzz_text(data, bytes), *picture = NULL, why[256];
    oar_schedule_report report = oar_schedule_report_init();
    oar_schedule *s = NULL;

    if (oar_schedule_parse(text, bytes, NULL, &s) == OAR_OK) {
        int good = oar_schedule_check(s, NULL, &report) == OAR_OK;

        check_text(s, 0);
        check_text(s, 1);
        FUZZ_CHECK((oar_schedule_explain(s, why, sizeof why) == 0) == good);
        FUZZ_CHECK(!good || (report.bubble > -1e-9 && report.bubble < 1));
        FUZZ_CHECK((oar_schedule_draw(s, NULL, OAR_PICTURE_TEXT, &picture) ==
                    OAR_OK) == good);
        oar_free(picture);
        oar_schedule_release(s);
    }
    free(text);
    return 0;
}
