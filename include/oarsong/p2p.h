/* SPDX-License-Identifier: Apache-2.0 */
/* p2p.h: from one rank to one other.
 *
 * A message goes to the receive with the same group, source and tag; messages
 * of one pair and tag arrive in the order they were sent. Tags are the user's,
 * 0 to 2^32-1; no message of a collective or of another group can match one.
 * Sizes must agree: a message of another size than the receive is drained,
 * fails with OAR_E_SIZE there, and the group goes on. Sending to oneself works.
 *
 * opts and work as in collective.h. A send is done when its buffer may be used
 * again, which says nothing about the receiver.
 */
#ifndef OARSONG_P2P_H
#define OARSONG_P2P_H

#include <oarsong/collective.h>

OAR_BEGIN_DECLS

#define oar_send(group, buf, peer, tag, opts, work) \
    oar_send_at(OAR_HERE, group, buf, peer, tag, opts, work)
OAR_API oar_status oar_send_at(const char *file, int line, oar_group *group,
                               oar_span buf, int peer, uint32_t tag,
                               const oar_call_opts *opts, oar_work **work);

#define oar_recv(group, buf, peer, tag, opts, work) \
    oar_recv_at(OAR_HERE, group, buf, peer, tag, opts, work)
OAR_API oar_status oar_recv_at(const char *file, int line, oar_group *group,
                               oar_span buf, int peer, uint32_t tag,
                               const oar_call_opts *opts, oar_work **work);

OAR_END_DECLS

#endif
