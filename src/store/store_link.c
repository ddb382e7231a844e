/* SPDX-License-Identifier: Apache-2.0 */
/* store_link: sends frames and reads them, over as many connections as it
 * takes.
 *
 * What can be cured by trying again (OAR_E_CLOSED here) and what cannot (the
 * other end does not speak our protocol, refuses us, or is silent for too long)
 * are told apart by the status; the former becomes the caller's failure only at
 * the deadline. */
#include "store/store_link.h"

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
    ATTEMPT_MS = 5000,    /* to connect and be welcomed, once */
    LEAST_MS = 1000,      /* to reach a server, for calls with less time */
    SAY_MS = 1000,        /* then it is told that there is none, */
    SAY_AGAIN_MS = 30000, /* and so often again */
    WELCOME_MAX = OARI_WIRE_TEXT_MAX + 64 /* bytes: a refusal and its reason */
};

oar_status oari_link_create(const char *address, const oari_trust *trust,
                            oari_store_link **link)
{
    oari_store_link *l = oari_alloc(1, sizeof *l);

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

static void hang_up(oari_store_link *l)
{
    oari_stream_close(&l->stream);
    oari_fork_close(l->stream.fd);
    oari_stream_plain(&l->stream, -1);
}

static void drop_reply(oari_store_link *l)
{
    oari_free(l->reply);
    l->reply = NULL;
}

void oari_link_destroy(oari_store_link *link)
{
    hang_up(link);
    drop_reply(link);
    oari_free(link);
}

/* ---- bytes --------------------------------------------------------------- */

static oar_status lost(const oari_store_link *l, const char *why)
{
    return oari_fail(OAR_E_CLOSED, "the store at %s: %s", l->address, why);
}

static oar_status await(const oari_store_link *l, short events,
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

static oar_status put_all(oari_store_link *l, unsigned char *bytes,
                          size_t count, int64_t deadline_ns)
{
    while (count > 0) {
        struct iovec rest = { bytes, count };
        ssize_t put = oari_stream_write(&l->stream, &rest, 1);
        if (put > 0) {
            bytes += put;
            count -= (size_t)put;
        } else if (put < 0 && errno == EAGAIN)
            OARI_TRY(await(l, POLLOUT, deadline_ns));
        else if (put < 0)
            return lost(l, strerror(errno));
    }
    return OAR_OK;
}

static oar_status get_all(oari_store_link *l, unsigned char *bytes,
                          size_t count, int64_t deadline_ns)
{
    while (count > 0) {
        struct iovec room = { bytes, count };
        ssize_t got = oari_stream_read(&l->stream, &room, 1);
        if (got > 0) {
            bytes += got;
            count -= (size_t)got;
        } else if (got == 0)
            return lost(l, "the connection was closed");
        else if (errno == EAGAIN)
            OARI_TRY(await(l, POLLIN, deadline_ns));
        else
            return lost(l, strerror(errno));
    }
    return OAR_OK;
}

static oar_status put_message(oari_store_link *l, const oari_wire_message *m,
                              int64_t deadline_ns)
{
    unsigned char *frame;
    size_t bytes;
    oar_status status;

    OARI_TRY(oari_wire_frame(m, &frame, &bytes));
    status = put_all(l, frame, bytes, deadline_ns);
    oari_free(frame);
    return status;
}

static oar_status read_head(oari_store_link *l, int64_t deadline_ns,
                            oari_wire_head *head)
{
    unsigned char bytes[OARI_WIRE_HEAD];

    OARI_TRY(get_all(l, bytes, sizeof bytes, deadline_ns));
    switch (oari_wire_read_head(bytes, head)) {
    case OAR_OK: return OAR_OK;
    case OAR_E_UNSUPPORTED:
        return oari_fail(OAR_E_UNSUPPORTED,
                         "the store at %s speaks version %d of our protocol, "
                         "this library %d",
                         l->address, head->version, OARI_WIRE_VERSION);
    default:
        return oari_fail(OAR_E_DATA, "what answers at %s is no store of ours",
                         l->address);
    }
}

/* A server that has not proved itself may not say much. */
static oar_status get_message(oari_store_link *l, int64_t deadline_ns,
                              oari_wire_message *m)
{
    oari_wire_head head;

    OARI_TRY(read_head(l, deadline_ns, &head));
    if (!l->welcome && head.bytes > WELCOME_MAX)
        return oari_fail(OAR_E_DATA,
                         "a greeting of %u bytes from the store "
                         "at %s",
                         head.bytes, l->address);
    drop_reply(l);
    if ((l->reply = oari_alloc(head.bytes, 1)) == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(get_all(l, l->reply, head.bytes, deadline_ns));
    return oari_wire_read(&head, l->reply, m);
}

/* ---- one request, one reply ---------------------------------------------- */

/* A failure that the server reports. */
static oar_status report(const oari_wire_message *reply)
{
    return oari_fail(reply->head.status, "%.*s", (int)reply->value.bytes,
                     (const char *)reply->value.data);
}

static oar_status exchange(oari_store_link *l, const oari_wire_message *request,
                           int64_t deadline_ns, oari_wire_message *reply)
{
    OARI_TRY(put_message(l, request, deadline_ns));
    OARI_TRY(get_message(l, deadline_ns, reply));
    if (reply->head.kind != (request->head.kind | OARI_WIRE_REPLY) ||
        reply->head.number != request->head.number)
        return oari_fail(OAR_E_DATA,
                         "the store at %s replies to something else",
                         l->address);
    return OAR_OK;
}

static oar_status greet_with(oari_store_link *l, oari_wire_message *m,
                             int64_t deadline_ns, oari_wire_message *reply)
{
    OARI_TRY(exchange(l, m, deadline_ns, reply));
    return reply->head.status == OAR_OK ? OAR_OK : report(reply);
}

static oar_status greet(oari_store_link *l, oari_wire wire, int64_t deadline_ns)
{
    oari_wire_message hello = { .head.kind = OARI_WIRE_HELLO, .id = l->id };
    oari_wire_message proof = { .head.kind = OARI_WIRE_PROOF };
    oari_wire_message reply;
    oari_auth auth;

    OARI_TRY(oari_auth_open(&auth, wire, &hello));
    OARI_TRY(greet_with(l, &hello, deadline_ns, &reply));
    OARI_TRY(oari_auth_answer(&auth, l->trust, &reply, &proof));
    OARI_TRY(greet_with(l, &proof, deadline_ns, &reply));
    l->welcome = 1;
    return OAR_OK;
}

/* ---- connecting ---------------------------------------------------------- */

static oar_status reach(oari_store_link *l, int64_t deadline_ns)
{
    int done = 0;

    OARI_TRY(oari_sock_connect_again(l->address, l->attempts++, &l->stream.fd));
    for (;;) {
        OARI_TRY(oari_sock_connected(l->stream.fd, l->address, &done));
        if (done)
            return OAR_OK;
        OARI_TRY(await(l, POLLOUT, deadline_ns));
    }
}

static oar_status begin_tls(oari_store_link *l, int64_t deadline_ns)
{
    int done = 0;
    short want = 0;

    OARI_TRY(oari_trust_call(l->trust, l->stream.fd, &l->stream));
    for (;;) {
        OARI_TRY(oari_stream_shake(&l->stream, &done, &want));
        if (done)
            return OAR_OK;
        OARI_TRY(await(l, want, deadline_ns));
    }
}

/* Says which store it was that refused, or was refused. */
static oar_status name_it(const oari_store_link *l, oar_status status)
{
    oar_error why = *oar_last_error();

    if (status != OAR_E_AUTH)
        return status;
    return oari_fail(OAR_E_AUTH, "the store at %s: %.440s", l->address,
                     why.text);
}

static oar_status connect_and_greet(oari_store_link *l, int64_t deadline_ns)
{
    oari_wire wire = OARI_WIRE_PLAIN;
    oar_status status;

    l->welcome = 0;
    OARI_TRY(reach(l, deadline_ns));
    status = oari_trust_wire(l->trust, l->stream.fd, &wire);
    if (status == OAR_OK && wire == OARI_WIRE_TLS)
        status = begin_tls(l, deadline_ns);
    if (status == OAR_OK)
        status = greet(l, wire, deadline_ns);
    return name_it(l, status);
}

/* What this process itself lacks: the peer is not at fault. */
static int is_own_lack(const oar_error *e)
{
    return e->status == OAR_E_SYSTEM &&
           (e->sys_errno == EMFILE || e->sys_errno == ENFILE ||
            e->sys_errno == ENOMEM || e->sys_errno == ENOBUFS);
}

/* What a later attempt may not meet: nobody there yet, a server that is busy or
 * stopped. A name that nobody knows is a typing error, unless it was known. */
static int may_pass(const oari_store_link *l, oar_status status)
{
    if (is_own_lack(oar_last_error()))
        return 0;
    return status == OAR_E_CLOSED || status == OAR_E_SYSTEM ||
           status == OAR_E_TIMEOUT || (status == OAR_E_NOT_FOUND && l->reached);
}

/* A moment before the next attempt: 10 ms at first, doubling to 1 s, of which a
 * random half is cut, so that many clients do not come all at once. */
static void rest(oari_store_link *l, unsigned times, int64_t deadline_ns)
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

static oar_status unreachable(const oari_store_link *l)
{
    oar_error why = *oar_last_error();

    return oari_fail(OAR_E_CLOSED, "no store at %s: %s", l->address, why.text);
}

static oar_status connect_once(oari_store_link *link, int64_t deadline_ns)
{
    oar_status status = connect_and_greet(link, deadline_ns);

    if (status == OAR_OK) {
        link->attempts = 0;
        link->reached = 1;
    } else
        hang_up(link);
    return status;
}

/* Only of one that has never been there: about others there is more to say
 * elsewhere. */
static void say_unreached(const oari_store_link *l, int64_t deadline_ns)
{
    char left[48] = "";

    if (l->reached)
        return;
    if (deadline_ns != OARI_NEVER)
        snprintf(left, sizeof left, "; giving up in %lld s",
                 (long long)(deadline_ns - oari_now_ns()) / 1000000000);
    oari_log(OAR_LOG_WARN, "no store at %s yet: %s%s", l->address,
             oar_last_error_text(), left);
}

oar_status oari_link_connect(oari_store_link *link, int64_t deadline_ns)
{
    int64_t say_ns = oari_deadline(SAY_MS);

    for (;;) {
        int64_t one = oari_deadline(ATTEMPT_MS);
        oar_status status = connect_once(
            link, deadline_ns < one && deadline_ns > oari_now_ns() ? deadline_ns
                                                                   : one);
        if (status == OAR_OK)
            return OAR_OK;
        if (!may_pass(link, status))
            return status;
        if (oari_now_ns() >= deadline_ns)
            return unreachable(link);
        if (oari_now_ns() >= say_ns) {
            say_unreached(link, deadline_ns);
            say_ns = oari_deadline(SAY_AGAIN_MS);
        }
        rest(link, link->attempts - 1, deadline_ns);
    }
}

/* ---- asking -------------------------------------------------------------- */

static int64_t reach_by(const oari_patience *p)
{
    int64_t reach = oari_deadline(p->reach_ms), least = oari_deadline(LEAST_MS);

    if (p->park_ns != 0 && reach > p->park_ns)
        reach = p->park_ns > least ? p->park_ns : least;
    return reach;
}

static oar_status ask_once(oari_store_link *l, oari_wire_message *request,
                           const oari_patience *patience,
                           oari_wire_message *reply)
{
    oar_status status;

    if (patience->park_ns != 0)
        request->amount = oari_deadline_left_ms(patience->park_ns);
    status = exchange(l, request, patience->reply_ns, reply);
    if (status != OAR_OK)
        hang_up(l);
    return status;
}

/* Connections that are lost again at once do not win more time. */
static oar_status ask_again(oari_store_link *link, oari_wire_message *request,
                            const oari_patience *patience,
                            oari_wire_message *reply)
{
    int64_t reach = reach_by(patience), asked;
    unsigned lost_times = 0;
    oar_status status;

    for (;;) {
        if (link->stream.fd < 0)
            OARI_TRY(oari_link_connect(link, reach));
        asked = oari_now_ns();
        status = ask_once(link, request, patience, reply);
        if (status != OAR_E_CLOSED)
            return status;
        if (oari_now_ns() - asked > LEAST_MS * INT64_C(1000000)) {
            reach = reach_by(patience);
            lost_times = 0;
        }
        if (lost_times > 0 && oari_now_ns() >= reach)
            return status;
        if (lost_times++ > 0)
            rest(link, lost_times, reach);
    }
}

oar_status oari_link_ask(oari_store_link *link, oari_wire_message *request,
                         const oari_patience *patience,
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
    return reply->head.status == OAR_OK ? OAR_OK : report(reply);
}
