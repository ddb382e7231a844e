/* SPDX-License-Identifier: Apache-2.0 */
/* store_client: sends frames and reads them, over as many connections as that
 * takes.
 *
 * The status tells apart what another attempt may cure (OAR_E_CLOSED here) and
 * what it cannot (the other end does not speak this protocol, refuses this
 * client, or is silent for too long). The former becomes the caller's failure
 * only at the deadline. */
#include "store/store_client.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/status.h"
#include "net/sock.h"

enum {
    ATTEMPT_MS = 5000,     /* for one connection and its handshake */
    LEAST_MS = 1000,       /* to reach a server, for calls with less time */
    WARN_MS = 1000,        /* until a warning that there is no store yet */
    WARN_AGAIN_MS = 30000, /* between that and the next */
    WELCOME_MAX = OARI_WIRE_TEXT_MAX + 64 /* bytes: a refusal and its reason */
};

oar_status oari_store_client_create(const char *address,
                                    const oari_trust *trust,
                                    oari_store_client **link)
{
    oari_store_client *l = oari_alloc(1, sizeof *l);

    if (l == NULL)
        return OAR_E_NOMEM;
    l->address = address;
    l->trust = trust;
    oari_stream_plain(&l->stream, -1);
    while (l->id == 0)
        if (getrandom(&l->id, sizeof l->id, 0) != sizeof l->id) {
            oari_free(l);
            return oari_fail(OAR_E_SYSTEM, "getrandom");
        }
    l->dice = l->id;
    *link = l;
    return OAR_OK;
}

static void disconnect(oari_store_client *l)
{
    oari_stream_close(&l->stream);
    oari_fork_close(l->stream.fd);
    oari_stream_plain(&l->stream, -1);
}

void oari_store_client_destroy(oari_store_client *link)
{
    disconnect(link);
    oari_free(link->reply);
    oari_free(link);
}

/* ---- messages ------------------------------------------------------------ */

static oar_status fail_lost(const oari_store_client *l, const char *why)
{
    return oari_fail(OAR_E_CLOSED, "the store at %s: %s", l->address, why);
}

static oar_status wait_ready(const oari_store_client *l, short events,
                             int64_t deadline_ns)
{
    struct pollfd wait = { l->stream.fd, events, 0 };
    int ready;

    do
        ready = poll(&wait, 1, oari_deadline_left_ms(deadline_ns));
    while (ready < 0 && errno == EINTR);
    if (ready < 0)
        return oari_fail(OAR_E_SYSTEM, "poll");
    if (ready == 0)
        return oari_fail(OAR_E_TIMEOUT,
                         "the store at %s does not answer in time", l->address);
    return OAR_OK;
}

static oar_status send_message(oari_store_client *l, const oari_wire_message *m,
                               int64_t deadline_ns)
{
    oar_status status = OAR_OK;
    unsigned char *frame;
    size_t bytes, done = 0;

    OARI_TRY(oari_wire_frame(m, &frame, &bytes));
    while (done < bytes && status == OAR_OK) {
        struct iovec rest = { frame + done, bytes - done };
        ssize_t put = oari_stream_write(&l->stream, &rest, 1);

        if (put >= 0)
            done += (size_t)put;
        else if (errno == EAGAIN)
            status = wait_ready(l, POLLOUT, deadline_ns);
        else
            status = fail_lost(l, strerror(errno));
    }
    oari_free(frame);
    return status;
}

static oar_status read_all(oari_store_client *l, unsigned char *bytes,
                           size_t count, int64_t deadline_ns)
{
    while (count > 0) {
        struct iovec room = { bytes, count };
        ssize_t got = oari_stream_read(&l->stream, &room, 1);

        if (got > 0) {
            bytes += got;
            count -= (size_t)got;
        } else if (got == 0)
            return fail_lost(l, "the connection was closed");
        else if (errno == EAGAIN)
            OARI_TRY(wait_ready(l, POLLIN, deadline_ns));
        else
            return fail_lost(l, strerror(errno));
    }
    return OAR_OK;
}

static oar_status receive_message(oari_store_client *l, int64_t deadline_ns,
                                  oari_wire_message *m)
{
    unsigned char bytes[OARI_WIRE_HEADER_BYTES];
    oari_wire_header head;

    OARI_TRY(read_all(l, bytes, sizeof bytes, deadline_ns));
    switch (oari_wire_read_header(bytes, &head)) {
    case OAR_OK: break;
    case OAR_E_UNSUPPORTED:
        return oari_fail(OAR_E_UNSUPPORTED,
                         "the store at %s speaks version %d of our protocol, "
                         "this library %d",
                         l->address, head.version, OARI_WIRE_VERSION);
    default:
        return oari_fail(OAR_E_DATA, "what answers at %s is no store of ours",
                         l->address);
    }
    if (!l->welcome && head.bytes > WELCOME_MAX) /* not proved: little room */
        return oari_fail(OAR_E_DATA,
                         "a greeting of %u bytes from the store "
                         "at %s",
                         head.bytes, l->address);
    oari_free(l->reply);
    if ((l->reply = oari_alloc(head.bytes, 1)) == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(read_all(l, l->reply, head.bytes, deadline_ns));
    return oari_wire_read(&head, l->reply, m);
}

/* Sends one request and reads its reply, which may be a failure. */
static oar_status exchange(oari_store_client *l,
                           const oari_wire_message *request,
                           int64_t deadline_ns, oari_wire_message *reply)
{
    OARI_TRY(send_message(l, request, deadline_ns));
    OARI_TRY(receive_message(l, deadline_ns, reply));
    if (reply->head.kind != (request->head.kind | OARI_WIRE_REPLY) ||
        reply->head.number != request->head.number)
        return oari_fail(OAR_E_DATA,
                         "the store at %s replies to something else",
                         l->address);
    return OAR_OK;
}

/* Fails as the reply does, if that is a failure. */
static oar_status check_reply(const oari_wire_message *reply)
{
    return reply->head.status == OAR_OK
               ? OAR_OK
               : oari_fail(reply->head.status, "%.*s", (int)reply->value.bytes,
                           (const char *)reply->value.data);
}

/* ---- connecting ---------------------------------------------------------- */

static oar_status connect_socket(oari_store_client *l, int64_t deadline_ns)
{
    int done = 0;

    OARI_TRY(oari_sock_connect_again(l->address, l->attempts++, &l->stream.fd));
    for (;;) {
        OARI_TRY(oari_sock_connected(l->stream.fd, l->address, &done));
        if (done)
            return OAR_OK;
        OARI_TRY(wait_ready(l, POLLOUT, deadline_ns));
    }
}

static oar_status start_tls(oari_store_client *l, int64_t deadline_ns)
{
    int done = 0;
    short want = 0;

    OARI_TRY(oari_trust_start_tls(l->trust, l->stream.fd, &l->stream));
    for (;;) {
        OARI_TRY(oari_stream_handshake(&l->stream, &done, &want));
        if (done)
            return OAR_OK;
        OARI_TRY(wait_ready(l, want, deadline_ns));
    }
}

/* Sends HELLO and PROOF: both ends have proved themselves then. */
static oar_status authenticate(oari_store_client *l, oari_protection wire,
                               int64_t deadline_ns)
{
    oari_wire_message hello = { .head.kind = OARI_WIRE_HELLO, .id = l->id };
    oari_wire_message proof = { .head.kind = OARI_WIRE_PROOF };
    oari_wire_message reply;
    oari_auth auth;

    OARI_TRY(oari_auth_open(&auth, wire, &hello));
    OARI_TRY(exchange(l, &hello, deadline_ns, &reply));
    OARI_TRY(check_reply(&reply));
    OARI_TRY(oari_auth_answer(&auth, l->trust, &reply, &proof));
    OARI_TRY(exchange(l, &proof, deadline_ns, &reply));
    OARI_TRY(check_reply(&reply));
    l->welcome = 1;
    return OAR_OK;
}

static oar_status connect_once(oari_store_client *l, int64_t deadline_ns)
{
    oari_protection wire = OARI_PROTECTION_PLAIN;
    oar_status status;

    l->welcome = 0;
    status = connect_socket(l, deadline_ns);
    if (status == OAR_OK)
        status = oari_trust_protection(l->trust, l->stream.fd, &wire);
    if (status == OAR_OK && wire == OARI_PROTECTION_TLS)
        status = start_tls(l, deadline_ns);
    if (status == OAR_OK)
        status = authenticate(l, wire, deadline_ns);
    if (status == OAR_E_AUTH) {
        oar_error why = *oar_last_error();
        oari_fail(OAR_E_AUTH, "the store at %s: %.440s", l->address, why.text);
    }
    if (status == OAR_OK) {
        l->attempts = 0;
        l->reached = 1;
    } else
        disconnect(l);
    return status;
}

/* Returns whether a later attempt may succeed: the server is not there yet, or
 * busy, or stopped. An unknown host name is a typing error unless it was known
 * before; and what this process lacks itself is no fault of the server's. */
static int is_worth_retrying(const oari_store_client *l, oar_status status)
{
    const oar_error *e = oar_last_error();

    if (e->status == OAR_E_SYSTEM &&
        (e->sys_errno == EMFILE || e->sys_errno == ENFILE ||
         e->sys_errno == ENOMEM || e->sys_errno == ENOBUFS))
        return 0;
    return status == OAR_E_CLOSED || status == OAR_E_SYSTEM ||
           status == OAR_E_TIMEOUT || (status == OAR_E_NOT_FOUND && l->reached);
}

/* Sleeps before the next attempt: 10 ms at first, doubling to 1 s, less a
 * random part of up to a half, so that many clients do not come all at once. */
static void back_off(oari_store_client *l, unsigned times, int64_t deadline_ns)
{
    int64_t nap = 10000000LL << (times < 7 ? times : 7);
    int64_t left = deadline_ns - oari_now_ns();
    struct timespec time;

    l->dice = l->dice * 6364136223846793005u + 1442695040888963407u;
    if (nap > 1000000000)
        nap = 1000000000;
    nap -= (int64_t)((l->dice >> 33) % (uint64_t)(nap / 2));
    if (nap > left)
        nap = left > 0 ? left : 0;
    time.tv_sec = nap / 1000000000;
    time.tv_nsec = nap % 1000000000;
    nanosleep(&time, NULL);
}

oar_status oari_store_client_connect(oari_store_client *link,
                                     int64_t deadline_ns)
{
    int64_t warn_ns = oari_deadline(WARN_MS);

    for (;;) {
        int64_t one = oari_deadline(ATTEMPT_MS), now = oari_now_ns();
        oar_status status = connect_once(
            link, deadline_ns < one && deadline_ns > now ? deadline_ns : one);

        if (status == OAR_OK || !is_worth_retrying(link, status))
            return status;
        now = oari_now_ns();
        if (now >= deadline_ns) {
            oar_error why = *oar_last_error();
            return oari_fail(OAR_E_CLOSED, "no store at %s: %s", link->address,
                             why.text);
        }
        if (now >= warn_ns && !link->reached) { /* else others say more */
            char left[48] = "";

            if (deadline_ns != OARI_NEVER)
                snprintf(left, sizeof left, "; giving up in %lld s",
                         (long long)(deadline_ns - now) / 1000000000);
            oari_log(OAR_LOG_WARN, "no store at %s yet: %s%s", link->address,
                     oar_last_error_text(), left);
            warn_ns = oari_deadline(WARN_AGAIN_MS);
        }
        back_off(link, link->attempts - 1, deadline_ns);
    }
}

/* ---- requests ------------------------------------------------------------ */

static int64_t connect_deadline(const oari_request_limits *p)
{
    int64_t reach = oari_deadline(p->reach_ms), least = oari_deadline(LEAST_MS);

    if (p->park_ns != 0 && reach > p->park_ns)
        reach = p->park_ns > least ? p->park_ns : least;
    return reach;
}

static oar_status ask_once(oari_store_client *l, oari_wire_message *request,
                           const oari_request_limits *patience,
                           oari_wire_message *reply)
{
    oar_status status;

    if (patience->park_ns != 0)
        request->amount = oari_deadline_left_ms(patience->park_ns);
    status = exchange(l, request, patience->reply_ns, reply);
    if (status != OAR_OK)
        disconnect(l);
    return status;
}

/* Asks until there is a reply. Connections that are lost again at once do not
 * extend the time to reach the server. */
static oar_status ask_again(oari_store_client *link, oari_wire_message *request,
                            const oari_request_limits *patience,
                            oari_wire_message *reply)
{
    int64_t reach = connect_deadline(patience), asked;
    unsigned losses = 0;
    oar_status status;

    for (;;) {
        if (link->stream.fd < 0)
            OARI_TRY(oari_store_client_connect(link, reach));
        asked = oari_now_ns();
        status = ask_once(link, request, patience, reply);
        if (status != OAR_E_CLOSED)
            return status;
        if (oari_now_ns() - asked > LEAST_MS * INT64_C(1000000)) {
            reach = connect_deadline(patience);
            losses = 0;
        }
        if (losses > 0 && oari_now_ns() >= reach)
            return status;
        if (losses++ > 0)
            back_off(link, losses, reach);
    }
}

oar_status oari_store_client_ask(oari_store_client *link,
                                 oari_wire_message *request,
                                 const oari_request_limits *patience,
                                 oari_wire_message *reply)
{
    request->head.number = ++link->number;
    if (!patience->once)
        OARI_TRY(ask_again(link, request, patience, reply));
    else {
        if (link->stream.fd < 0)
            OARI_TRY(connect_once(link, patience->reply_ns));
        OARI_TRY(ask_once(link, request, patience, reply));
    }
    return check_reply(reply);
}
