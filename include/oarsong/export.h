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

/* A row of OAR_STATUS_LIST, OAR_DTYPE_LIST, ... as a member of an enum. */
#define OAR_ENUM_ROW(name, value, ...) name = value,

/* The call site: what the public macros pass to the `_at` functions, which copy
 * the file name. Bindings for other languages call the `_at` functions with
 * their own file and line; a wrapper in C or C++ may define OAR_HERE before it
 * includes these headers, to pass its caller's. Calls that start collectives on
 * the way (oar_group_split, oar_ddp_wrap, oar_forward, oar_backward, ...) take
 * a call site too: faults of those collectives cite that line. A NULL file: the
 * line of the call that is under way on this thread (in a hook, say), else
 * unknown. */
#ifndef OAR_HERE
#define OAR_HERE __FILE__, __LINE__
#endif

/* Options. Every options struct begins with `size_t size`, and a field that is
 * zero means the default. Pass NULL for all defaults, or, in C and C++20 (where
 * fields are named in the order of the struct),
 *
 *     oar_all_reduce(g, s, OAR_SUM, OAR_OPTS(oar_call_opts, .timeout_ms = 50),
 *                    NULL);
 *
 * and in C++17 (or C)
 *
 *     oar_call_opts o = oar_call_opts_init();
 *     o.timeout_ms = 50;
 *
 * and from other languages, with the size that abi.json says,
 *
 *     oar_opts_init(&o, sizeof(oar_call_opts));
 *
 * What OAR_OPTS makes lives to the end of the block in C, of the statement in
 * C++. A program compiled against older headers passes a smaller size; the
 * library takes the missing fields as zero. One compiled against newer headers
 * is refused with OAR_E_ARG only if it sets a field this library does not know.
 * A size that no such struct has is OAR_E_ARG: one that is no multiple of
 * sizeof(size_t), or above 4096.
 */
#ifndef __cplusplus
#define OAR_OPTS(type, ...) (&(type){ .size = sizeof(type), __VA_ARGS__ })
#endif

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

OAR_BEGIN_DECLS

/* Makes the struct of that size at opts all zero but for its size, as the
 * inline functions ..._init do. NULL is fine. */
OAR_API void oar_opts_init(void *opts, size_t size);

OAR_END_DECLS

#ifdef __cplusplus
template <class T> static inline const T *oar_opts_address(const T &made)
{
    return &made;
}
#ifdef __GNUC__
/* g++ -Wextra warns of fields that are left out, but not from here on. */
#pragma GCC system_header
#endif
#define OAR_OPTS(type, ...) \
    (oar_opts_address(type{ .size = sizeof(type), __VA_ARGS__ }))
#endif

#endif
