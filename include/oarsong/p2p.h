/* SPDX-License-Identifier: Apache-2.0 */
/* p2p.h: from one rank to one other.
 *
 * A message goes to the receive with the same group, source and tag; messages
 * of one pair and tag arrive in the order they were sent. Tags are the user's,
 * 0 to 2^32-1; no message of a collective or of another group can match one.
 * Sizes must agree: a message of another size than the receive is drained,
 * fails with OAR_E_SIZE there, and the group goes on; with opts.at_most only
 * one that is larger. So does the send, if it
 * is synchronous or too large to have been done before (opts, and eager_bytes
 * of the group). A message of the same size but another dtype is received and
 * fails with OAR_E_DTYPE there; u8 is bytes, which go with everything. Sending
 * to oneself works.
 *
 * opts and work as in collective.h. A send is done when its buffer may be used
 * again, which says nothing about the receiver. A send that is done returns
 * OAR_OK, even if the group ends before its caller has asked: for example when
 * the receiver has the message and aborts at once. One that is synchronous, or
 * too large to be done before the receiver has answered, returns the fault if
 * the group ends before that answer has come, and so may a receive whose
 * message was on its way.
 */
#ifndef OARSONG_P2P_H
#define OARSONG_P2P_H

#include <oarsong/collective.h>

OAR_BEGIN_DECLS

/* In a receive or a probe: a message from any rank, or with any tag. Messages
 * that match are taken in the order they came in. */
enum { OAR_ANY_SOURCE = -1, OAR_ANY_TAG = -1 };

/* A message that came, or waits. */
typedef struct oar_message {
    size_t size;
    int source;
    int64_t tag;
    size_t bytes;
} oar_message;
OAR_OPTS_INIT(oar_message);

#define oar_send(group, buf, peer, tag, opts, work) \
    oar_send_at(OAR_HERE, group, buf, peer, tag, opts, work)
OAR_API oar_status oar_send_at(const char *file, int line, oar_group *group,
                               oar_span buf, int peer, int64_t tag,
                               const oar_call_opts *opts, oar_work **work);

#define oar_recv(group, buf, peer, tag, opts, work) \
    oar_recv_at(OAR_HERE, group, buf, peer, tag, opts, work)
OAR_API oar_status oar_recv_at(const char *file, int line, oar_group *group,
                               oar_span buf, int peer, int64_t tag,
                               const oar_call_opts *opts, oar_work **work);

/* Sends out to one rank and receives in from one (often another), both under
 * way at once, so that rings and pairs cannot lock up. */
#define oar_sendrecv(group, out, to, out_tag, in, from, in_tag, opts, work)    \
    oar_sendrecv_at(OAR_HERE, group, out, to, out_tag, in, from, in_tag, opts, \
                    work)
OAR_API oar_status oar_sendrecv_at(const char *file, int line, oar_group *group,
                                   oar_span out, int to, int64_t out_tag,
                                   oar_span in, int from, int64_t in_tag,
                                   const oar_call_opts *opts, oar_work **work);

/* Whether a message from that peer with that tag waits to be received; if so
 * says so in *found, and what it is in *message (may be NULL). Does not take
 * it, does not wait. If none waits and the peer is gone, or all peers where any
 * would do, that ends the group with OAR_E_PEER, as it ends a receive; in a
 * loose group only this call returns OAR_E_PEER. The
 * recorder keeps one record of probes that follow each other with the same peer
 * and tag: from the first of them to the last. Any thread. */
#define oar_probe(group, peer, tag, found, message) \
    oar_probe_at(OAR_HERE, group, peer, tag, found, message)
OAR_API oar_status oar_probe_at(const char *file, int line, oar_group *group,
                                int peer, int64_t tag, int *found,
                                oar_message *message);

/* The same, but waits for one up to the timeout (0: the group's; below 0: for
 * ever). OAR_E_TIMEOUT does not end the group. Recorded, and reported when it
 * stalls, like a receive. */
#define oar_probe_wait(group, peer, tag, timeout_ms, message) \
    oar_probe_wait_at(OAR_HERE, group, peer, tag, timeout_ms, message)
OAR_API oar_status oar_probe_wait_at(const char *file, int line,
                                     oar_group *group, int peer, int64_t tag,
                                     int64_t timeout_ms, oar_message *message);

OAR_END_DECLS

#endif
