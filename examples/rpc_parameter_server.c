/* SPDX-License-Identifier: Apache-2.0 */
/* rpc_parameter_server: rank 0 has the weights of a line; the others fetch
 * them, find a gradient with numbers of their own, and send it, each at its own
 * pace. A worker that dies is not missed:
 *     oarsong run -n 4 --keep-going rpc_parameter_server 300 --die
 * (rank 1 kills itself half way.) */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

static void must(oar_status status)
{
    if (status != OAR_OK) {
        fprintf(stderr, "rpc_parameter_server: %s\n", oar_last_error_text());
        exit(1);
    }
}

/* ---- the server ---------------------------------------------------------- */

typedef struct weights {
    double slope, offset;
} weights;

static oar_status pull(void *arg, oar_rpc_call *call)
{
    const weights *w = arg;
    oar_status status = oar_rpc_put_f64(oar_rpc_reply(call), w->slope);

    if (status == OAR_OK)
        status = oar_rpc_put_f64(oar_rpc_reply(call), w->offset);
    return status;
}

static oar_status push(void *arg, oar_rpc_call *call)
{
    weights *w = arg;
    double slope, offset;

    if (oar_rpc_get_f64(oar_rpc_args(call), &slope) != OAR_OK ||
        oar_rpc_get_f64(oar_rpc_args(call), &offset) != OAR_OK)
        return OAR_E_DATA;
    if (!isfinite(slope) || !isfinite(offset))
        return oar_rpc_fail(call, OAR_E_ARG, "a gradient that is no number");
    w->slope -= 0.1 * slope;
    w->offset -= 0.1 * offset;
    return OAR_OK;
}

/* ---- a worker ------------------------------------------------------------ */

/* One step: the gradient of the squared error at one point of y = 3x + 1. */
static void learn(oar_rpc *rpc, double x)
{
    oar_rpc_message *reply, *gradient;
    double slope, offset, error;

    must(oar_rpc_sync(rpc, 0, "pull", NULL, NULL, &reply));
    must(oar_rpc_get_f64(reply, &slope));
    must(oar_rpc_get_f64(reply, &offset));
    oar_rpc_message_destroy(reply);
    error = slope * x + offset - (3 * x + 1);
    must(oar_rpc_message_create(&gradient));
    must(oar_rpc_put_f64(gradient, error * x));
    must(oar_rpc_put_f64(gradient, error));
    must(oar_rpc_sync(rpc, 0, "push", gradient, NULL, NULL));
}

int main(int argc, char **argv)
{
    int steps = argc > 1 ? atoi(argv[1]) : 300;
    int die = argc > 2 && strcmp(argv[2], "--die") == 0;
    weights w = { 0, 0 };
    oar_group *world;
    oar_rpc *rpc;
    int rank, size;

    must(oar_group_from_env(NULL, &world));
    rank = oar_group_rank(world);
    size = oar_group_size(world);
    must(oar_rpc_create(world, NULL, &rpc));
    if (rank == 0) { /* inline: one at a time, and nothing waits in them */
        must(oar_rpc_register(rpc, OAR_OPTS(oar_rpc_function, .name = "pull",
                                            .fn = pull, .arg = &w,
                                            .manner = OAR_RPC_INLINE)));
        must(oar_rpc_register(rpc, OAR_OPTS(oar_rpc_function, .name = "push",
                                            .fn = push, .arg = &w,
                                            .manner = OAR_RPC_INLINE)));
    }
    must(oar_barrier(world, NULL, NULL));
    for (int step = 0; step < steps && (rank > 0 || size == 1); step++) {
        if (die && rank == 1 && step == steps / 2)
            raise(SIGKILL);
        learn(rpc, (step * 7 + rank * 3) % 10 / 10.0 - 0.5);
    }
    must(oar_rpc_shutdown(rpc, 0)); /* the server serves until all are done */
    if (rank == 0)
        printf("after %d steps of %d worker%s: f(1) = %.2f\n", steps,
               size > 1 ? size - 1 : 1, size > 2 ? "s" : "",
               w.slope + w.offset);
    oar_rpc_destroy(rpc);
    oar_group_destroy(world);
    return 0;
}
