/* SPDX-License-Identifier: Apache-2.0 */
/* base/reduce/reduce_loops.h: the loops of a reduction, once, for any element
 * on any instruction set. Not an ordinary header: it is included once per
 * element with
 *
 *   E       the element's short name, e.g. f32; all names begin with it
 *   INLINE  how a function here is declared (inlined always, for the target)
 *   UNIT_MAX  the most bytes a unit can have
 *
 * and uses what the including file defines:
 *
 *   E_acc                    one unit of elements, ready to be combined
 *   E_unit()                 bytes of memory that one unit covers
 *   E_load(from), E_store(to, a)
 *   E_combine(kind, a, b)
 *   E_scale(a, x), E_divide(a, x)
 *
 * Four units at a time are gathered from all sources in registers and then
 * stored to all destinations. Loads of a place always come before stores to it,
 * so a destination may be a source. What is left at the end goes through a
 * small buffer, with the same arithmetic. */
#define PASTE_(a, b) a##_##b
#define PASTE(a, b)  PASTE_(a, b)
#define NAME(word)   PASTE(E, word)

INLINE NAME(acc)
    NAME(take)(const oari_reduction *r, int s, const unsigned char *from)
{
    NAME(acc) a = NAME(load)(from);

    return r->factor != NULL ? NAME(scale)(a, r->factor[s]) : a;
}

INLINE NAME(acc)
    NAME(finish)(const oari_reduction *r, double inverse, NAME(acc) a)
{
    if (r->divisor == 0)
        return a;
    if (inverse != 0)
        return NAME(scale)(a, inverse);
    return NAME(divide)(a, r->divisor);
}

INLINE void NAME(four)(const oari_reduction *r, double inverse, size_t at)
{
    const size_t u = NAME(unit)();
    const unsigned char *p = (const unsigned char *)r->source[0] + at;
    NAME(acc) a = NAME(take)(r, 0, p);
    NAME(acc) b = NAME(take)(r, 0, p + u);
    NAME(acc) c = NAME(take)(r, 0, p + 2 * u);
    NAME(acc) d = NAME(take)(r, 0, p + 3 * u);

    for (int s = 1; s < r->sources; s++) {
        p = (const unsigned char *)r->source[s] + at;
        a = NAME(combine)(r->kind, a, NAME(take)(r, s, p));
        b = NAME(combine)(r->kind, b, NAME(take)(r, s, p + u));
        c = NAME(combine)(r->kind, c, NAME(take)(r, s, p + 2 * u));
        d = NAME(combine)(r->kind, d, NAME(take)(r, s, p + 3 * u));
    }
    a = NAME(finish)(r, inverse, a);
    b = NAME(finish)(r, inverse, b);
    c = NAME(finish)(r, inverse, c);
    d = NAME(finish)(r, inverse, d);
    for (int i = 0; i < r->destinations; i++) {
        unsigned char *q = (unsigned char *)r->destination[i] + at;

        NAME(store)(q, a);
        NAME(store)(q + u, b);
        NAME(store)(q + 2 * u, c);
        NAME(store)(q + 3 * u, d);
    }
}

INLINE void NAME(one)(const oari_reduction *r, double inverse, size_t at)
{
    const unsigned char *p = (const unsigned char *)r->source[0] + at;
    NAME(acc) a = NAME(take)(r, 0, p);

    for (int s = 1; s < r->sources; s++) {
        p = (const unsigned char *)r->source[s] + at;
        a = NAME(combine)(r->kind, a, NAME(take)(r, s, p));
    }
    a = NAME(finish)(r, inverse, a);
    for (int i = 0; i < r->destinations; i++)
        NAME(store)((unsigned char *)r->destination[i] + at, a);
}

/* The last bytes, fewer than a unit. */
INLINE void NAME(rest)(const oari_reduction *r, double inverse, size_t at,
                       size_t bytes)
{
    unsigned char part[UNIT_MAX] = { 0 };
    NAME(acc) a;

    memcpy(part, (const unsigned char *)r->source[0] + at, bytes);
    a = NAME(take)(r, 0, part);
    for (int s = 1; s < r->sources; s++) {
        memcpy(part, (const unsigned char *)r->source[s] + at, bytes);
        a = NAME(combine)(r->kind, a, NAME(take)(r, s, part));
    }
    NAME(store)(part, NAME(finish)(r, inverse, a));
    for (int i = 0; i < r->destinations; i++)
        memcpy((unsigned char *)r->destination[i] + at, part, bytes);
}

INLINE void NAME(run)(const oari_reduction *r, double inverse, size_t bytes)
{
    const size_t u = NAME(unit)();
    size_t at = 0;

    for (; bytes - at >= 4 * u; at += 4 * u)
        NAME(four)(r, inverse, at);
    for (; bytes - at >= u; at += u)
        NAME(one)(r, inverse, at);
    if (at < bytes)
        NAME(rest)(r, inverse, at, bytes - at);
}

#undef NAME
#undef PASTE
#undef PASTE_
#undef E
