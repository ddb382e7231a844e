/* SPDX-License-Identifier: Apache-2.0 */
/* Receives of at most so many bytes, on every transport: eager and offered
 * messages, posted before and after they come, and those that are too large. */
#include "support/ranks.h"

#include <stdlib.h>
#include <string.h>

#include <oarsong/p2p.h>
#include <oarsong/work.h>

enum { TAG = 9, ROOM = 300007, UNTOUCHED = 0xee };

typedef struct at_most_case {
    size_t sent, room;
    int posted_first; /* the receive, before the message is sent */
    int synchronous;
} at_most_case;

static const at_most_case cases[] = {
    { 0, 11, 0, 0 },        { 0, 0, 1, 0 },           { 1, 11, 1, 0 },
    { 7, 7, 0, 0 },         { 7, 64, 1, 1 },          { 4096, 4099, 0, 0 },
    { 4097, ROOM, 1, 0 },   { 65536, ROOM, 0, 0 },    { 65537, ROOM, 1, 0 },
    { 200003, ROOM, 0, 0 }, { 200003, ROOM, 1, 0 },   { 200003, ROOM, 0, 1 },
    { ROOM, ROOM, 1, 0 },   { ROOM, ROOM - 1, 0, 0 }, { 5, 4, 1, 0 },
    { 1, 0, 0, 1 },
};
enum { CASES = sizeof cases / sizeof *cases };

/* Returns whether the backend refuses such receives, as a plugin without
 * OAR_CAN_AT_MOST does: then there is nothing else to see. */
static int refuses(oar_group *g)
{
    oar_work *work = NULL;
    oar_status status =
        oar_recv(g, oar_span_of(NULL, 0, OAR_U8), oar_group_rank(g), TAG,
                 OAR_OPTS(oar_call_opts, .at_most = 1, .prepare = 1), &work);

    oar_work_release(work);
    return status == OAR_E_UNSUPPORTED;
}

static unsigned char byte_at(size_t i, int number)
{
    return (unsigned char)(i * 31 + i / 251 + (size_t)number);
}

static oar_status send_case(oar_group *g, const at_most_case *t, int number)
{
    unsigned char *data = malloc(ROOM);
    int fits = t->sent <= t->room;
    oar_work *work = NULL;
    oar_status status;

    for (size_t i = 0; i < t->sent; i++)
        data[i] = byte_at(i, number);
    if (t->posted_first)
        CHECK_OK(oar_barrier(g, NULL, NULL));
    CHECK_OK(oar_send(g, oar_span_of(data, t->sent, OAR_U8), 1, TAG,
                      OAR_OPTS(oar_call_opts, .synchronous = t->synchronous),
                      &work));
    if (!t->posted_first)
        CHECK_OK(oar_barrier(g, NULL, NULL));
    status = oar_work_wait(work);
    CHECK(status == OAR_OK || (!fits && status == OAR_E_SIZE));
    CHECK(fits || !t->synchronous || status == OAR_E_SIZE);
    oar_work_release(work);
    free(data);
    return OAR_OK;
}

/* What is behind the message in the buffer stays as it was. */
static int is_right(const unsigned char *data, size_t sent, int number)
{
    for (size_t i = 0; i < ROOM; i++)
        if (data[i] != (i < sent ? byte_at(i, number) : UNTOUCHED))
            return 0;
    return 1;
}

static oar_status receive_case(oar_group *g, const at_most_case *t, int number)
{
    unsigned char *data = malloc(ROOM);
    oar_message came = oar_message_init();
    int fits = t->sent <= t->room;
    oar_work *work = NULL;
    oar_status status;

    memset(data, UNTOUCHED, ROOM);
    if (!t->posted_first)
        CHECK_OK(oar_barrier(g, NULL, NULL));
    CHECK_OK(oar_recv(g, oar_span_of(data, t->room, OAR_U8),
                      number % 2 == 0 ? 0 : OAR_ANY_SOURCE, TAG,
                      OAR_OPTS(oar_call_opts, .at_most = 1, .message = &came),
                      &work));
    if (t->posted_first)
        CHECK_OK(oar_barrier(g, NULL, NULL));
    status = oar_work_wait(work);
    CHECK(status == (fits ? OAR_OK : OAR_E_SIZE));
    CHECK(came.source == 0 && came.tag == TAG && came.bytes == t->sent);
    CHECK(is_right(data, fits ? t->sent : 0, number));
    oar_work_release(work);
    free(data);
    return OAR_OK;
}

static oar_status run_cases(oar_group *g, void *arg)
{
    for (int i = 0; i < CASES && !refuses(g); i++)
        CHECK_OK(oar_group_rank(g) == 0 ? send_case(g, &cases[i], i)
                                        : receive_case(g, &cases[i], i));
    return OAR_OK;
}

static void smaller_messages_fit_and_larger_ones_fail_alone(void **state)
{
    ranks_all(2, run_cases, NULL);
}

/* The buffer is as large as it was for each start. */
static oar_status restart(oar_group *g, void *arg)
{
    static const size_t sizes[] = { 3, 77, 0, 1, 77 };
    oar_message came = oar_message_init();
    unsigned char data[77] = { 0 };
    oar_work *work = NULL;

    if (refuses(g))
        return OAR_OK;
    if (oar_group_rank(g) == 1)
        CHECK_OK(oar_recv(g, oar_span_of(data, 77, OAR_U8), 0, TAG,
                          OAR_OPTS(oar_call_opts, .at_most = 1, .prepare = 1,
                                   .message = &came),
                          &work));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (oar_group_rank(g) == 0) {
            CHECK_OK(oar_send(g, oar_span_of(data, sizes[i], OAR_U8), 1, TAG,
                              NULL, NULL));
            continue;
        }
        CHECK_OK(oar_work_start(work));
        CHECK_OK(oar_work_wait(work));
        CHECK(came.bytes == sizes[i]);
    }
    oar_work_release(work);
    return OAR_OK;
}

static void a_prepared_receive_takes_other_sizes_each_time(void **state)
{
    ranks_all(2, restart, NULL);
}

static oar_status send_to_oneself(oar_group *g, void *arg)
{
    int32_t out[3] = { 4, 5, 6 }, in[5] = { 0, 0, 0, 7, 8 };
    oar_message came = oar_message_init();
    oar_work *work = NULL;
    int me = oar_group_rank(g);

    if (refuses(g))
        return OAR_OK;
    CHECK_OK(oar_recv(g, oar_span_of(in, 5, OAR_I32), me, TAG,
                      OAR_OPTS(oar_call_opts, .at_most = 1, .message = &came),
                      &work));
    CHECK_OK(oar_send(g, oar_span_of(out, 3, OAR_I32), me, TAG, NULL, NULL));
    CHECK_OK(oar_work_wait(work));
    oar_work_release(work);
    CHECK(came.bytes == 12 && in[0] == 4 && in[2] == 6 && in[3] == 7);
    CHECK_OK(oar_send(g, oar_span_of(out, 1, OAR_I32), me, TAG, NULL, NULL));
    CHECK(oar_recv(g, oar_span_of(in, 5, OAR_F32), me, TAG,
                   OAR_OPTS(oar_call_opts, .at_most = 1), NULL) == OAR_E_DTYPE);
    return OAR_OK;
}

static void messages_to_oneself_fit_too_and_dtypes_are_compared(void **state)
{
    ranks_all(2, send_to_oneself, NULL);
    assert_int_equal(ranks_run("self", 1, NULL, send_to_oneself, NULL), OAR_OK);
}

/* Which backends refuse is known: none of ours. */
static oar_status check_backend(oar_group *g, void *arg)
{
    CHECK(!refuses(g));
    return OAR_OK;
}

static void all_backends_of_the_library_have_them(void **state)
{
    assert_int_equal(ranks_run("sim", 2, NULL, check_backend, NULL), OAR_OK);
    assert_int_equal(ranks_run("shm", 2, NULL, check_backend, NULL), OAR_OK);
    assert_int_equal(ranks_run("tcp", 2, NULL, check_backend, NULL), OAR_OK);
}

static oar_status receive_on_device(oar_group *g, void *arg)
{
    oar_span span = oar_span_of(NULL, 0, OAR_U8);

    span.device.kind = OAR_CUDA;
    CHECK(oar_recv(g, span, 0, TAG, OAR_OPTS(oar_call_opts, .at_most = 1),
                   NULL) == OAR_E_UNSUPPORTED);
    return OAR_OK;
}

static void device_memory_is_refused(void **state)
{
    assert_int_equal(ranks_run("sim", 1, NULL, receive_on_device, NULL),
                     OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smaller_messages_fit_and_larger_ones_fail_alone),
        cmocka_unit_test(a_prepared_receive_takes_other_sizes_each_time),
        cmocka_unit_test(messages_to_oneself_fit_too_and_dtypes_are_compared),
        cmocka_unit_test(all_backends_of_the_library_have_them),
        cmocka_unit_test(device_memory_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
