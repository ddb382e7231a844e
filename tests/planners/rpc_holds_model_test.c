/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol of remote references, explored: every order in which three ranks
 * can give a value to each other, drop it and die, and in which their messages
 * and the news of a death can arrive (in order only within a pair). In every
 * state a rank with a handle still has the value; when all handles are gone and
 * all messages have arrived, the owner has freed it and nobody remembers it.
 *
 * One value is enough: the states of two share nothing. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "parallel/rpc/rpc_holds.h"

enum { MOST_RANKS = 4, CHANNEL = 12, OWNER = 0, MAKER = 1 };

enum verb { CREATE = 1, GRANT, PASS, HOLD, NOTED, LOST, HELD, DROP };

typedef struct note {
    uint8_t verb, n;
} note;

/* NEVER: its maker died before the call came. Those that hold it are counted
 * all the same, and get a failure when they use it. */
enum value_phase { TO_COME, THERE, NEVER, FREED };

/* Everything, without pointers, so that states can be compared as bytes. */
typedef struct snapshot {
    uint32_t count[MOST_RANKS];
    struct {
        uint32_t handles, granted;
        uint32_t waiting[MOST_RANKS], owed[MOST_RANKS];
        uint8_t asked, broken, known, pad;
    } rank[MOST_RANKS];
    note channel[MOST_RANKS][MOST_RANKS][CHANNEL];
    uint8_t queued[MOST_RANKS][MOST_RANKS];
    uint8_t dead[MOST_RANKS];
    uint8_t told[MOST_RANKS][MOST_RANKS]; /* [who][of whom]: the death */
    uint8_t phase, passes, deaths, any_died;
} snapshot;

typedef struct search {
    int ranks, lose_held; /* lose_held: a broken protocol, to see it found */
    snapshot *stack;
    size_t depth, room;
    uint64_t *seen;
    size_t slots, states;
    const char *wrong;
} search;

static oari_owned owned_of(const search *s, snapshot *x)
{
    return (oari_owned){ s->ranks, x->count };
}

static oari_held held_of(const search *s, snapshot *x, int r)
{
    return (oari_held){ s->ranks,           OWNER,
                        x->rank[r].handles, x->rank[r].granted,
                        x->rank[r].asked,   x->rank[r].broken,
                        x->rank[r].waiting, x->rank[r].owed };
}

static void keep_held(snapshot *x, int r, const oari_held *held)
{
    x->rank[r].handles = held->handles;
    x->rank[r].granted = held->granted;
    x->rank[r].asked = (uint8_t)held->asked;
    x->rank[r].broken = (uint8_t)held->broken;
}

static void post(search *s, snapshot *x, int from, int to, enum verb verb,
                 uint32_t n)
{
    uint8_t *queued = &x->queued[from][to];

    if (x->dead[to])
        return;
    if (*queued == CHANNEL) {
        s->wrong = "a channel is too short for this search";
        return;
    }
    x->channel[from][to][(*queued)++] = (note){ (uint8_t)verb, (uint8_t)n };
}

/* After whatever may have been a rank's last use of it. */
static void settle(search *s, snapshot *x, int r)
{
    oari_held held = held_of(s, x, r);

    if (!x->rank[r].known || !oari_held_is_over(&held))
        return;
    if (held.granted > 0 && !x->told[r][OWNER])
        post(s, x, r, OWNER, DROP, held.granted);
    memset(&x->rank[r], 0, sizeof x->rank[r]);
}

static void settle_owner(search *s, snapshot *x)
{
    oari_owned owned = owned_of(s, x);

    if (x->phase != TO_COME && oari_owned_is_free(&owned))
        x->phase = FREED;
}

/* ---- what can happen ----------------------------------------------------- */

static void give(search *s, snapshot *x, int from, int to)
{
    oari_owned owned = owned_of(s, x);
    oari_held held = held_of(s, x, from);

    if (from == OWNER) {
        oari_owned_grant(&owned, to);
        post(s, x, from, to, GRANT, 0);
    } else {
        if (!x->told[from][to])
            oari_held_pass(&held, to);
        keep_held(x, from, &held);
        post(s, x, from, to, PASS, 0);
    }
}

static void release(search *s, snapshot *x, int r)
{
    if (r == OWNER) {
        x->count[OWNER]--;
        settle_owner(s, x);
    } else {
        x->rank[r].handles--;
        settle(s, x, r);
    }
}

static void confirm_owed(search *s, snapshot *x, int r)
{
    for (int to = 0; to < s->ranks; to++) {
        for (; x->rank[r].owed[to] > 0; x->rank[r].owed[to]--)
            post(s, x, r, to, HELD, 0);
    }
}

static void arrive_at_owner(search *s, snapshot *x, int from, note m)
{
    oari_owned owned = owned_of(s, x);

    switch (m.verb) {
    case CREATE:
        x->phase = THERE;
        oari_owned_grant(&owned, from);
        break;
    case PASS: /* it comes home */
        if (x->phase == THERE)
            oari_owned_grant(&owned, OWNER);
        post(s, x, OWNER, from, HELD, 0);
        break;
    case HOLD:
        if (x->phase == THERE || x->phase == TO_COME)
            oari_owned_grant(&owned, from);
        post(s, x, OWNER, from,
             x->phase == THERE || x->phase == TO_COME ? NOTED : LOST, 0);
        break;
    case DROP:
        if (!oari_owned_drop(&owned, from, m.n))
            s->wrong = "a drop of more than was granted";
        break;
    default: s->wrong = "a message that is not for an owner";
    }
    settle_owner(s, x);
}

static void arrive(search *s, snapshot *x, int from, int r, note m)
{
    oari_held held = held_of(s, x, r);
    oari_held_reply reply = OARI_HELD_NOTHING;

    x->rank[r].known = 1;
    switch (m.verb) {
    case GRANT: oari_held_granted(&held); break;
    case PASS: reply = oari_held_passed(&held, from); break;
    case NOTED: oari_held_noted(&held, 1); break;
    case LOST: oari_held_noted(&held, 0); break;
    case HELD:
        if (!oari_held_confirmed(&held, from))
            s->wrong = "a HELD that nobody waited for";
        break;
    default: s->wrong = "a message that is not for a holder";
    }
    keep_held(x, r, &held);
    if (reply == OARI_HELD_ASK && x->told[r][OWNER])
        s->wrong = "a HOLD to an owner known to be dead";
    if (reply == OARI_HELD_ASK)
        post(s, x, r, OWNER, HOLD, 0);
    if (reply == OARI_HELD_CONFIRM)
        post(s, x, r, from, HELD, 0);
    if (m.verb == NOTED || m.verb == LOST)
        confirm_owed(s, x, r);
    if (s->lose_held && m.verb == PASS) /* the mistake: confirms at once */
        confirm_owed(s, x, r);
    settle(s, x, r);
}

static void deliver(search *s, snapshot *x, int from, int to)
{
    note m = x->channel[from][to][0];
    uint8_t left = --x->queued[from][to];

    memmove(x->channel[from][to], x->channel[from][to] + 1,
            left * sizeof(note));
    x->channel[from][to][left] = (note){ 0, 0 };
    if (to != OWNER && x->told[to][OWNER] && m.verb == PASS)
        x->rank[to].broken = 1; /* the agent knows that the owner is dead */
    if (to == OWNER)
        arrive_at_owner(s, x, from, m);
    else
        arrive(s, x, from, to, m);
}

static void die(search *s, snapshot *x, int r)
{
    (void)s;
    x->dead[r] = x->any_died = 1;
    memset(&x->rank[r], 0, sizeof x->rank[r]);
    for (int from = 0; from < MOST_RANKS; from++) {
        x->queued[from][r] = 0;
        memset(x->channel[from][r], 0, sizeof x->channel[from][r]);
    }
}

/* Rank r is told of a death; what is still under way from there is ignored. */
static void tell(search *s, snapshot *x, int r, int of)
{
    oari_owned owned = owned_of(s, x);
    oari_held held = held_of(s, x, r);

    x->told[r][of] = 1;
    x->queued[of][r] = 0;
    memset(x->channel[of][r], 0, sizeof x->channel[of][r]);
    if (r == OWNER) {
        if (of == MAKER && x->phase == TO_COME)
            x->phase = NEVER;
        oari_owned_rank_gone(&owned, of);
        settle_owner(s, x);
        return;
    }
    oari_held_rank_gone(&held, of);
    keep_held(x, r, &held);
    if (of == OWNER)
        confirm_owed(s, x, r);
    settle(s, x, r);
}

/* ---- what must hold ------------------------------------------------------ */

static int is_quiet(const search *s, const snapshot *x)
{
    for (int r = 0; r < s->ranks; r++)
        for (int o = 0; o < s->ranks; o++)
            if (x->queued[r][o] > 0 ||
                (x->dead[o] && !x->dead[r] && !x->told[r][o]))
                return 0;
    return 1;
}

static void judge(search *s, const snapshot *x)
{
    int handles = !x->dead[OWNER] ? (int)x->count[OWNER] : 0;

    for (int r = 1; r < s->ranks; r++) {
        int registered = x->rank[r].granted > 0;

        handles += (int)x->rank[r].handles;
        if (!x->dead[OWNER] && x->rank[r].handles > 0 && !x->rank[r].broken &&
            x->phase >= FREED && (registered || !x->any_died))
            s->wrong = "freed while a rank has a handle";
        if (x->rank[r].broken && !x->any_died)
            s->wrong = "a reference broke, and nobody died";
    }
    if (handles > 0 || !is_quiet(s, x))
        return;
    if (!x->dead[OWNER] && x->phase < FREED)
        s->wrong = "all handles are gone, and the value is not";
    for (int r = 1; r < s->ranks; r++)
        if (x->rank[r].known)
            s->wrong = "a rank remembers what nobody has";
}

/* ---- the search ---------------------------------------------------------- */

static uint64_t hash_state(const snapshot *x)
{
    const unsigned char *byte = (const unsigned char *)x;
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < sizeof *x / 8; i++) {
        uint64_t word;

        memcpy(&word, byte + 8 * i, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    for (size_t i = sizeof *x / 8 * 8; i < sizeof *x; i++)
        h = (h ^ byte[i]) * 0x100000001b3u;
    return h | 1;
}

static void grow_seen(search *s)
{
    uint64_t *old = s->seen;
    size_t slots = s->slots;

    s->slots *= 4;
    s->seen = calloc(s->slots, sizeof *s->seen);
    assert_non_null(s->seen);
    for (size_t i = 0; i < slots; i++) {
        size_t at = old[i] & (s->slots - 1);

        if (old[i] == 0)
            continue;
        while (s->seen[at] != 0)
            at = (at + 1) & (s->slots - 1);
        s->seen[at] = old[i];
    }
    free(old);
}

/* Keeps a state that was not seen before, by 63 bits of its hash. */
static void visit(search *s, const snapshot *x)
{
    uint64_t h = hash_state(x);
    size_t at = h & (s->slots - 1);

    while (s->seen[at] != 0 && s->seen[at] != h)
        at = (at + 1) & (s->slots - 1);
    if (s->seen[at] == h)
        return;
    s->seen[at] = h;
    if (2 * ++s->states > s->slots)
        grow_seen(s);
    if (s->depth == s->room) {
        s->room *= 2;
        s->stack = realloc(s->stack, s->room * sizeof *s->stack);
        assert_non_null(s->stack);
    }
    s->stack[s->depth++] = *x;
}

typedef void (*event_fn)(search *, snapshot *, int, int);

static void try_event(search *s, const snapshot *before, event_fn event, int a,
                      int b)
{
    snapshot x = *before;

    event(s, &x, a, b);
    visit(s, &x);
}

static void give_counted(search *s, snapshot *x, int from, int to)
{
    x->passes--;
    give(s, x, from, to);
}

static void release_one(search *s, snapshot *x, int r, int unused)
{
    (void)unused;
    release(s, x, r);
}

static void die_counted(search *s, snapshot *x, int r, int unused)
{
    (void)unused;
    x->deaths--;
    die(s, x, r);
}

static int can_use(const snapshot *x, int r)
{
    if (x->dead[r])
        return 0;
    if (r == OWNER)
        return x->count[OWNER] > 0 && x->phase == THERE;
    return x->rank[r].handles > 0;
}

static void expand(search *s, const snapshot *x)
{
    for (int a = 0; a < s->ranks; a++) {
        if (x->dead[a])
            continue;
        if (can_use(x, a))
            try_event(s, x, release_one, a, 0);
        if (x->deaths > 0)
            try_event(s, x, die_counted, a, 0);
        for (int b = 0; b < s->ranks; b++) {
            if (b != a && x->passes > 0 && can_use(x, a) &&
                (a == OWNER || !x->rank[a].broken) && !x->told[a][b])
                try_event(s, x, give_counted, a, b);
            if (x->queued[b][a] > 0)
                try_event(s, x, deliver, b, a);
            if (x->dead[b] && !x->told[a][b])
                try_event(s, x, tell, a, b);
        }
    }
}

/* Explores everything; gives what was wrong, or NULL, and how many states. */
static const char *explore(int ranks, int remote, int passes, int deaths,
                           int lose_held, size_t *states)
{
    search s = {
        .ranks = ranks, .lose_held = lose_held, .room = 1024, .slots = 1 << 12
    };
    snapshot x;

    memset(&x, 0, sizeof x);
    x.passes = (uint8_t)passes;
    x.deaths = (uint8_t)deaths;
    s.stack = malloc(s.room * sizeof *s.stack);
    s.seen = calloc(s.slots, sizeof *s.seen);
    assert_non_null(s.stack);
    assert_non_null(s.seen);
    if (remote) {
        x.rank[MAKER].known = 1;
        x.rank[MAKER].handles = x.rank[MAKER].granted = 1;
        post(&s, &x, MAKER, OWNER, CREATE, 0);
    } else {
        x.count[OWNER] = 1;
        x.phase = THERE;
    }
    visit(&s, &x);
    while (s.depth > 0 && s.wrong == NULL) {
        x = s.stack[--s.depth];
        judge(&s, &x);
        expand(&s, &x);
    }
    free(s.stack);
    free(s.seen);
    *states = s.states;
    return s.wrong;
}

static void check_model(int ranks, int remote, int passes, int deaths)
{
    size_t states;
    const char *wrong = explore(ranks, remote, passes, deaths, 0, &states);

    print_message("%d ranks, %s, %d passes, %d deaths: %zu states\n", ranks,
                  remote ? "made by a call" : "made by its owner", passes,
                  deaths, states);
    if (wrong != NULL)
        fail_msg("%s", wrong);
    assert_true(states > 100);
}

static void no_order_of_three_ranks_leaks_or_drops_early(void **state)
{
    (void)state;
    check_model(3, 0, 5, 0);
    check_model(3, 1, 5, 0);
}

static void no_order_with_deaths_leaks_or_drops_early(void **state)
{
    (void)state;
    check_model(3, 0, 4, 2);
    check_model(3, 1, 4, 2);
}

static void no_order_of_four_ranks_leaks_or_drops_early(void **state)
{
    (void)state;
    check_model(4, 0, 3, 1);
}

static void the_search_finds_a_broken_protocol(void **state)
{
    size_t states;
    (void)state;

    assert_non_null(explore(3, 0, 3, 0, 1, &states));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_order_of_three_ranks_leaks_or_drops_early),
        cmocka_unit_test(no_order_with_deaths_leaks_or_drops_early),
        cmocka_unit_test(no_order_of_four_ranks_leaks_or_drops_early),
        cmocka_unit_test(the_search_finds_a_broken_protocol),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
