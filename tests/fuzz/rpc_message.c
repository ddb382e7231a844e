/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of RPC, as another rank could send them. No head makes the reader
 * take more memory than it allows, and what passes the check is read to its
 * end. */
#include "fuzz.h"

#include "parallel/rpc/rpc_message.h"

enum { MOST = 1 << 16 };

/* Reads the values one by one, whatever each is. */
static void read_all(oar_rpc_message *m)
{
    while (m->at < m->bytes) {
        const char *text;
        const void *data;
        oar_tensor *tensor;
        size_t bytes;
        oar_span span;
        int64_t number;
        double real;

        if (oar_rpc_get_i64(m, &number) == OAR_OK ||
            oar_rpc_get_f64(m, &real) == OAR_OK)
            continue;
        if (oar_rpc_get_text(m, &text) == OAR_OK)
            FUZZ_CHECK(strlen(text) <= m->bytes);
        else if (oar_rpc_get_bytes(m, &data, &bytes) == OAR_OK)
            FUZZ_CHECK(bytes <= m->bytes);
        else if (oar_rpc_get_tensor(m, &tensor) == OAR_OK)
            oar_tensor_release(tensor);
        else
            FUZZ_CHECK(oar_rpc_get_span(m, &span) == OAR_OK);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    unsigned char *copy = (unsigned char *)fuzz_text(data, bytes);
    unsigned char again[OARI_RPC_HEAD + OARI_RPC_NAME + OARI_RPC_SITE];
    uint64_t array_bytes[OARI_RPC_ARRAYS];
    oar_rpc_message *m = NULL;
    oari_rpc_head head;
    size_t behind;

    if (oari_rpc_read_head(copy, bytes, MOST, &head, &behind) == OAR_OK) {
        FUZZ_CHECK(head.value_bytes + head.array_bytes <= MOST);
        FUZZ_CHECK(oari_rpc_write_head(again, &head) == behind);
        FUZZ_CHECK(memcmp(again, copy, behind) == 0);
        if (oari_rpc_read_table(copy + behind, &head, array_bytes) == OAR_OK &&
            oari_rpc_message_receive((size_t)head.value_bytes, head.arrays,
                                     array_bytes, NULL, &m) == OAR_OK) {
            behind += 8 * (size_t)head.arrays;
            if (m->bytes > 0)
                memset(m->values, 0, m->bytes);
            if (bytes > behind)
                memcpy(m->values, copy + behind, bytes - behind);
            for (int64_t i = 0; i < m->arrays.count; i++)
                memset(m->arrays.data[i].data, 1, m->arrays.data[i].bytes);
            if (oari_rpc_message_check(m) == OAR_OK)
                read_all(m);
            oar_rpc_message_destroy(m);
        }
    }
    free(copy);
    return 0;
}
