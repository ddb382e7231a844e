/* SPDX-License-Identifier: Apache-2.0 */
/* oari_work_init sets every member of a work: on the stack it begins with
 * arbitrary bytes. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>

#include "comm/comm.h"

/* Where the members behind the call begin, and where those end that
 * oari_work_init sets. */
enum {
    BEGIN = offsetof(oar_work, call) + sizeof(oari_call),
    END = offsetof(oar_work, transfer)
};

static oar_work made_from(int rubbish, const oari_call *call)
{
    oar_work work;

    memset(&work, rubbish, sizeof work);
    oari_work_init(&work, (oar_group *)&work, call);
    assert_ptr_equal(work.group, &work);
    assert_int_equal(work.call.kind, call->kind);
    assert_int_equal(work.call.root, call->root);
    return work;
}

/* Padding would count, too: order the members so that there is none. */
static void every_member_of_a_work_is_set(void **state)
{
    const oari_call call = { .kind = OAR_COLL_RECV, .root = 5 };
    static const int rubbish[] = { 0, 0xff, 0xa5 };

    for (int i = 0; i < 3; i++) {
        oar_work work = made_from(rubbish[i], &call);

        for (size_t at = BEGIN; at < END; at++)
            if (((unsigned char *)&work)[at] != 0)
                fail_msg("byte %zu of an oar_work, behind its call at %d, "
                         "is not set",
                         at, (int)BEGIN);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_member_of_a_work_is_set),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
