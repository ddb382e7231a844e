/* SPDX-License-Identifier: Apache-2.0 */
/* support/rpc_functions.h: functions that the tests of RPC call. */
#ifndef TESTS_SUPPORT_RPC_FUNCTIONS_H
#define TESTS_SUPPORT_RPC_FUNCTIONS_H

#include <stdatomic.h>

#include <oarsong/rpc.h>

/* Makes an agent and registers, on every rank, before any returns:
 *   add_one, square: i64 -> i64;  double: f64 -> f64;  echo: a message ->
 *   bytes, i64s and arrays as they came;  fail -> OAR_E_SHAPE, by rpc_fail;
 *   fail_inside -> OAR_E_ARG of a call of the library;  wait: until it is
 *   cancelled, then OAR_E_CANCELLED;  left: -> i64, left_ms;  relay: i64 rank,
 *   text name -> what that function of that rank gives for 1;  relay_inline:
 *   the same, inline;  quick: like add_one, inline;  only_rank_0: like add_one,
 *   for rank 0;  tiny: like echo, for 100 bytes. */
oar_status rpc_open(oar_group *group, const oar_rpc_opts *opts, oar_rpc **rpc);

/* How many calls of "wait" have begun in this process. */
extern atomic_int rpc_waits_begun;

/* Shuts it down and destroys it. */
oar_status rpc_close(oar_rpc *rpc);

/* Calls a function of one i64 that gives one. */
oar_status rpc_number(oar_rpc *rpc, int to, const char *name, int64_t in,
                      int64_t *out);

/* A message with one i64. */
oar_rpc_message *rpc_message_of(int64_t value);

#endif
