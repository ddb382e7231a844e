/* SPDX-License-Identifier: Apache-2.0 */
/* log: writes lines to the user's function, or to standard error up to the
 * level of OARSONG_LOG. The function is set before threads start; the level of
 * the environment is read once. */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

static struct {
    oar_log_fn fn;
    void *arg;
    oar_log_level level;
} output;

static pthread_once_t env_once = PTHREAD_ONCE_INIT;
static oar_log_level env_level = OAR_LOG_WARN;

static void read_env_level(void)
{
    static const char *const name[] = { "off", "error", "warn", "info",
                                        "debug" };
    const char *wanted = getenv("OARSONG_LOG");

    for (int i = 0; wanted != NULL && i <= OAR_LOG_DEBUG; i++)
        if (strcasecmp(wanted, name[i]) == 0)
            env_level = (oar_log_level)i;
}

void oar_log_to(oar_log_fn fn, void *arg, oar_log_level level)
{
    output.fn = fn;
    output.arg = arg;
    output.level = level;
}

void oari_log(oar_log_level level, const char *format, ...)
{
    char line[1024];
    va_list args;

    pthread_once(&env_once, read_env_level);
    if (level > (output.fn != NULL ? output.level : env_level))
        return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (output.fn != NULL)
        output.fn(output.arg, level, line);
    else
        dprintf(STDERR_FILENO, "oarsong: %s\n", line);
}
