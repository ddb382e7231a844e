/* SPDX-License-Identifier: Apache-2.0 */
/* export.h: what every public header needs: linkage, visibility, the call
 * site, and how a sized options struct is made. */
#ifndef OARSONG_EXPORT_H
#define OARSONG_EXPORT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define OAR_BEGIN_DECLS extern "C" {
#define OAR_END_DECLS   }
#else
#define OAR_BEGIN_DECLS
#define OAR_END_DECLS
#endif

#if defined(__GNUC__)
#define OAR_API                __attribute__((visibility("default")))
#define OAR_PRINTF(text, args) __attribute__((format(printf, text, args)))
#else
#define OAR_API
#define OAR_PRINTF(text, args)
#endif

/* The call site: what the public macros pass to the `_at` functions. Bindings
 * for other languages call the `_at` functions with their own file and line.
 * The file name must stay readable as long as the library is in use. */
#define OAR_HERE __FILE__, __LINE__

/* Options. Every options struct begins with `size_t size`, and a field that is
 * zero means the default. Pass NULL for all defaults, or, in C,
 *
 *     oar_all_reduce(g, s, OAR_SUM, OAR_OPTS(oar_call_opts, .timeout_ms = 50),
 *                    NULL);
 *
 * and in C++17 (or C)
 *
 *     oar_call_opts o = oar_call_opts_init();
 *     o.timeout_ms = 50;
 *
 * A program compiled against older headers passes a smaller size; the library
 * takes the missing fields as zero. One compiled against newer headers is
 * refused with OAR_E_ARG only if it sets a field this library does not know.
 */
#define OAR_OPTS(type, ...) (&(type){ .size = sizeof(type), __VA_ARGS__ })

#define OAR_OPTS_INIT(type)                           \
    static inline type type##_init(void)              \
    {                                                 \
        type made;                                    \
        unsigned char *byte = (unsigned char *)&made; \
        for (size_t i = 0; i < sizeof made; i++)      \
            byte[i] = 0;                              \
        made.size = sizeof made;                      \
        return made;                                  \
    }                                                 \
    struct oar_opts_semicolon

#endif
