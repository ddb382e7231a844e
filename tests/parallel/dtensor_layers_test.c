/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of layers on DTensors: norms, probabilities, losses, picking by
 * index, attention, convolutions and pools, against the same on one rank. */
#include "support/ranks.h"

#include "support/dtensor_truth.h"

/* One function for whole tensors and one for DTensors, with the same
 * arguments. */
#define WITH(name, plain, spread, ...)                                     \
    static oar_tensor *plain_##name(oar_tape *tape, oar_tensor *const *in) \
    {                                                                      \
        return plain(tape, __VA_ARGS__);                                   \
    }                                                                      \
    static oar_dtensor on_##name(oar_tape *tape, const oar_dtensor *in)    \
    {                                                                      \
        return spread(tape, __VA_ARGS__);                                  \
    }
/* The two with arguments of their own. */
#define EACH(name, plain, spread)                                          \
    static oar_tensor *plain_##name(oar_tape *tape, oar_tensor *const *in) \
    {                                                                      \
        return plain;                                                      \
    }                                                                      \
    static oar_dtensor on_##name(oar_tape *tape, const oar_dtensor *in)    \
    {                                                                      \
        return spread;                                                     \
    }
#define CASE(n, ...)                                                  \
    {                                                                 \
        .name = #n, .plain = plain_##n, .spread = on_##n, __VA_ARGS__ \
    }
#define RUN(cases, rounds) \
    truth_run(cases, (int)(sizeof(cases) / sizeof *(cases)), rounds)

/* ---- probabilities, by position ------------------------------------------ */

WITH(softmax_over, oar_softmax_over, oar_dtensor_softmax_over, in[0], 0)
WITH(log_softmax, oar_log_softmax, oar_dtensor_log_softmax, in[0], -1)
WITH(dropout, oar_dropout, oar_dtensor_dropout, in[0], 0.3, 11)
WITH(rotary, oar_rotary, oar_dtensor_rotary, in[0], 3, 10000)

static void probabilities_are_those_of_one_rank(void **state)
{
    const truth_case cases[] = {
        { .name = "softmax",
          .inputs = 1,
          .shape = { { 2, { 5, 3 } } },
          .plain1 = oar_softmax,
          .spread1 = oar_dtensor_softmax },
        CASE(softmax_over, .inputs = 1, .shape = { { 2, { 5, 3 } } }),
        CASE(log_softmax, .inputs = 1, .shape = { { 3, { 2, 5, 3 } } }),
        CASE(dropout, .inputs = 1, .shape = { { 3, { 4, 3, 2 } } }),
        CASE(rotary, .inputs = 1, .shape = { { 3, { 2, 5, 4 } } }),
    };

    RUN(cases, 1);
}

/* ---- norms --------------------------------------------------------------- */

WITH(add_layer_norm, oar_add_layer_norm, oar_dtensor_add_layer_norm, in[0],
     in[1], NULL, NULL, 1e-5, NULL)
EACH(layer_norm, oar_layer_norm(tape, in[0], in[1], in[2], 1e-5),
     oar_dtensor_layer_norm(tape, in[0], &in[1], &in[2], 1e-5))
    EACH(layer_norm_plain, oar_layer_norm(tape, in[0], NULL, NULL, 1e-5),
         oar_dtensor_layer_norm(tape, in[0], NULL, NULL, 1e-5))
        EACH(rms_norm, oar_rms_norm(tape, in[0], in[1], 1e-5),
             oar_dtensor_rms_norm(tape, in[0], &in[1], 1e-5))
            EACH(group_norm, oar_group_norm(tape, in[0], 3, in[1], in[2], 1e-5),
                 oar_dtensor_group_norm(tape, in[0], 3, &in[1], &in[2], 1e-5))
                EACH(batch_norm,
                     oar_batch_norm(tape, in[0], in[1], in[2], NULL, NULL, 1,
                                    0.1, 1e-5),
                     oar_dtensor_batch_norm(tape, in[0], &in[1], &in[2], NULL,
                                            NULL, 1, 0.1, 1e-5))
                    EACH(batch_norm_bias,
                         oar_batch_norm(tape, in[0], NULL, in[1], NULL, NULL, 1,
                                        0.1, 1e-5),
                         oar_dtensor_batch_norm(tape, in[0], NULL, &in[1], NULL,
                                                NULL, 1, 0.1, 1e-5))

                        static void norms_are_those_of_one_rank(void **state)
                        {
                            const truth_case cases[] = {
                                CASE(layer_norm, .inputs = 3,
                                     .shape = { { 2, { 5, 3 } },
                                                { 1, { 3 } },
                                                { 1, { 3 } } }),
                                CASE(add_layer_norm, .inputs = 2,
                                     .shape = { { 2, { 5, 3 } },
                                                { 2, { 5, 3 } } }),
                                CASE(layer_norm_plain, .inputs = 1,
                                     .shape = { { 3, { 2, 3, 4 } } }),
                                CASE(rms_norm, .inputs = 2,
                                     .shape = { { 3, { 2, 3, 4 } },
                                                { 1, { 4 } } }),
                                CASE(group_norm, .inputs = 3,
                                     .shape = { { 3, { 2, 6, 3 } },
                                                { 1, { 6 } },
                                                { 1, { 6 } } }),
                                CASE(batch_norm, .inputs = 3,
                                     .shape = { { 3, { 4, 3, 2 } },
                                                { 1, { 3 } },
                                                { 1, { 3 } } }),
                                CASE(
                                    batch_norm_bias, .inputs = 2,
                                    .shape = { { 2, { 7, 2 } }, { 1, { 2 } } }),
                            };

                            RUN(cases, 1);
                        }

/* ---- losses -------------------------------------------------------------- */

WITH(mse_sum, oar_mse_with, oar_dtensor_mse_with, in[0], in[1],
     OAR_OPTS(oar_loss_opts, .reduction = OAR_LOSS_SUM))
WITH(mse_none, oar_mse_with, oar_dtensor_mse_with, in[0], in[1],
     OAR_OPTS(oar_loss_opts, .reduction = OAR_LOSS_NONE))
WITH(l1_loss, oar_l1_loss, oar_dtensor_l1_loss, in[0], in[1],
     OAR_OPTS(oar_loss_opts, .reduction = OAR_LOSS_BATCH_MEAN))
WITH(huber_loss, oar_huber_loss, oar_dtensor_huber_loss, in[0], in[1], 0.7,
     NULL)
WITH(smooth_l1_loss, oar_smooth_l1_loss, oar_dtensor_smooth_l1_loss, in[0],
     in[1], 0.7, NULL)
WITH(kl_div, oar_kl_div, oar_dtensor_kl_div, in[0], in[1],
     OAR_OPTS(oar_kl_div_opts, .reduction = OAR_LOSS_BATCH_MEAN))
/* Nobody gets a gradient of weights: they come from a comparison. */
EACH(bce,
     oar_bce_with_logits(
         tape, in[0], in[1],
         OAR_OPTS(oar_bce_opts, .weight = oar_cast(tape, in[2], OAR_F64),
                  .positive_weight = oar_cast(tape, in[3], OAR_F64))),
     oar_dtensor_bce_with_logits(
         tape, in[0], in[1],
         (oar_dtensor[]){ oar_dtensor_cast(tape, in[2], OAR_F64) },
         (oar_dtensor[]){ oar_dtensor_cast(tape, in[3], OAR_F64) }, NULL))

    static void losses_are_those_of_one_rank(void **state)
    {
        const truth_case cases[] = {
            { .name = "mse",
              .inputs = 2,
              .shape = { { 2, { 5, 3 } }, { 2, { 5, 3 } } },
              .plain2 = oar_mse,
              .spread2 = oar_dtensor_mse },
            CASE(mse_sum, .inputs = 2,
                 .shape = { { 2, { 5, 3 } }, { 2, { 5, 3 } } }),
            CASE(mse_none, .inputs = 2,
                 .shape = { { 2, { 5, 3 } }, { 2, { 5, 3 } } }),
            CASE(l1_loss, .inputs = 2,
                 .shape = { { 2, { 5, 3 } }, { 2, { 5, 3 } } }),
            CASE(huber_loss, .inputs = 2,
                 .shape = { { 2, { 5, 3 } }, { 2, { 5, 3 } } }),
            CASE(smooth_l1_loss, .inputs = 2,
                 .shape = { { 2, { 5, 3 } }, { 2, { 5, 3 } } }),
            CASE(kl_div, .inputs = 2,
                 .shape = { { 2, { 5, 3 } }, { 2, { 5, 3 } } },
                 .kind = { TRUTH_NORMAL, TRUTH_POSITIVE }),
            CASE(bce, .inputs = 4,
                 .shape = { { 2, { 5, 3 } },
                            { 2, { 5, 3 } },
                            { 2, { 5, 1 } },
                            { 1, { 3 } } },
                 .kind = { TRUTH_NORMAL, TRUTH_POSITIVE, TRUTH_MASK,
                           TRUTH_MASK }),
        };

        RUN(cases, 1);
    }

WITH(cross_entropy, oar_cross_entropy, oar_dtensor_cross_entropy, in[0], in[1])
WITH(linear_cross_entropy, oar_linear_cross_entropy,
     oar_dtensor_linear_cross_entropy, in[0], in[1], in[2], NULL)
EACH(cross_entropy_ignore,
     oar_cross_entropy_with(tape, in[0], in[1],
                            OAR_OPTS(oar_cross_entropy_opts, .has_ignore = 1,
                                     .ignore = 2, .label_smoothing = 0.2)),
     oar_dtensor_cross_entropy_with(tape, in[0], in[1], NULL,
                                    OAR_OPTS(oar_cross_entropy_opts,
                                             .has_ignore = 1, .ignore = 2,
                                             .label_smoothing = 0.2)))
    EACH(cross_entropy_none,
         oar_cross_entropy_with(tape, in[0], in[1],
                                OAR_OPTS(oar_cross_entropy_opts,
                                         .reduction = OAR_LOSS_NONE)),
         oar_dtensor_cross_entropy_with(tape, in[0], in[1], NULL,
                                        OAR_OPTS(oar_cross_entropy_opts,
                                                 .reduction = OAR_LOSS_NONE)))
        EACH(cross_entropy_weight,
             oar_cross_entropy_with(
                 tape, in[0], in[1],
                 OAR_OPTS(oar_cross_entropy_opts, .label_smoothing = 0.1,
                          .weight = oar_shift(
                              tape, oar_cast(tape, in[2], OAR_F64), 0.5))),
             oar_dtensor_cross_entropy_with(
                 tape, in[0], in[1],
                 (oar_dtensor[]){ oar_dtensor_shift(
                     tape, oar_dtensor_cast(tape, in[2], OAR_F64), 0.5) },
                 OAR_OPTS(oar_cross_entropy_opts, .label_smoothing = 0.1)))

            static void cross_entropy_is_that_of_one_rank(void **state)
            {
                const truth_case cases[] = {
                    CASE(cross_entropy, .inputs = 2,
                         .shape = { { 2, { 5, 7 } }, { 1, { 5 } } },
                         .kind = { TRUTH_NORMAL, TRUTH_INDEX },
                         .index_below = 7),
                    CASE(linear_cross_entropy, .inputs = 3,
                         .shape = { { 2, { 5, 3 } },
                                    { 2, { 7, 3 } },
                                    { 1, { 5 } } },
                         .kind = { TRUTH_NORMAL, TRUTH_NORMAL, TRUTH_INDEX },
                         .index_below = 7),
                    CASE(cross_entropy_ignore, .inputs = 2,
                         .shape = { { 2, { 6, 5 } }, { 1, { 6 } } },
                         .kind = { TRUTH_NORMAL, TRUTH_INDEX },
                         .index_below = 5),
                    CASE(cross_entropy_none, .inputs = 2,
                         .shape = { { 2, { 5, 7 } }, { 1, { 5 } } },
                         .kind = { TRUTH_NORMAL, TRUTH_INDEX },
                         .index_below = 7),
                    CASE(cross_entropy_weight, .inputs = 3,
                         .shape = { { 2, { 5, 7 } },
                                    { 1, { 5 } },
                                    { 1, { 7 } } },
                         .kind = { TRUTH_NORMAL, TRUTH_INDEX, TRUTH_MASK },
                         .index_below = 7),
                };

                RUN(cases, 1);
            }

/* ---- picking by index ---------------------------------------------------- */

WITH(index_select, oar_index_select, oar_dtensor_index_select, in[0], 1, in[1])
WITH(take_along, oar_take_along, oar_dtensor_take_along, in[0], 0, in[1])
WITH(scatter_add, oar_tensor_scatter_add, oar_dtensor_scatter_add, in[0], 0,
     in[1], in[2])
WITH(embedding, oar_embedding, oar_dtensor_embedding, in[0], in[1])
WITH(embedding_with, oar_embedding_with, oar_dtensor_embedding_with, in[0],
     in[1], OAR_OPTS(oar_embedding_opts, .has_padding = 1, .padding = -2))

static void picking_is_that_of_one_rank(void **state)
{
    const truth_case cases[] = {
        CASE(index_select, .inputs = 2,
             .shape = { { 3, { 2, 5, 3 } }, { 1, { 4 } } },
             .kind = { TRUTH_NORMAL, TRUTH_INDEX }, .index_below = 5),
        CASE(take_along, .inputs = 2,
             .shape = { { 2, { 5, 3 } }, { 2, { 4, 3 } } },
             .kind = { TRUTH_NORMAL, TRUTH_INDEX }, .index_below = 5),
        CASE(scatter_add, .inputs = 3,
             .shape = { { 2, { 5, 3 } }, { 2, { 4, 3 } }, { 2, { 4, 3 } } },
             .kind = { TRUTH_NORMAL, TRUTH_INDEX }, .index_below = 5),
        CASE(embedding, .inputs = 2,
             .shape = { { 2, { 7, 3 } }, { 2, { 2, 5 } } },
             .kind = { TRUTH_NORMAL, TRUTH_INDEX }, .index_below = 7),
        CASE(embedding_with, .inputs = 2,
             .shape = { { 2, { 7, 3 } }, { 1, { 9 } } },
             .kind = { TRUTH_NORMAL, TRUTH_INDEX }, .index_below = 7),
    };

    RUN(cases, 1);
}

/* ---- attention ----------------------------------------------------------- */

EACH(attention, oar_attention(tape, in[0], in[1], in[2], NULL),
     oar_dtensor_attention(tape, in[0], in[1], in[2], NULL, NULL))
    EACH(causal_attention,
         oar_attention(tape, in[0], in[1], in[2],
                       OAR_OPTS(oar_attention_opts, .causal = 1)),
         oar_dtensor_attention(tape, in[0], in[1], in[2], NULL,
                               OAR_OPTS(oar_attention_opts, .causal = 1)))
        EACH(dropped_attention,
             oar_attention(tape, in[0], in[1], in[2],
                           OAR_OPTS(oar_attention_opts, .dropout = 0.3,
                                    .seed = 5)),
             oar_dtensor_attention(tape, in[0], in[1], in[2], NULL,
                                   OAR_OPTS(oar_attention_opts, .dropout = 0.3,
                                            .seed = 5)))
            EACH(masked_attention,
                 oar_attention(tape, in[0], in[1], in[2],
                               OAR_OPTS(oar_attention_opts, .mask = in[3])),
                 oar_dtensor_attention(tape, in[0], in[1], in[2], &in[3], NULL))

                static void attention_is_that_of_one_rank(void **state)
                {
                    const truth_case cases[] = {
                        CASE(attention, .inputs = 3,
                             .shape = { { 4, { 2, 3, 4, 2 } },
                                        { 4, { 2, 3, 5, 2 } },
                                        { 4, { 2, 3, 5, 3 } } }),
                        CASE(causal_attention,
                             .inputs = 3, /* two heads of q for one of k */
                             .shape = { { 4, { 2, 4, 4, 2 } },
                                        { 4, { 2, 2, 4, 2 } },
                                        { 4, { 2, 2, 4, 3 } } }),
                        CASE(dropped_attention, .inputs = 3,
                             .shape = { { 4, { 2, 3, 4, 2 } },
                                        { 4, { 2, 3, 4, 2 } },
                                        { 4, { 2, 3, 4, 2 } } }),
                        CASE(masked_attention, .inputs = 4,
                             .shape = { { 4, { 2, 4, 3, 2 } },
                                        { 4, { 2, 2, 5, 2 } },
                                        { 4, { 2, 2, 5, 2 } },
                                        { 3, { 4, 3, 5 } } }),
                        CASE(masked_attention, .inputs = 4,
                             .shape = { { 3, { 3, 4, 2 } },
                                        { 3, { 3, 5, 2 } },
                                        { 3, { 3, 5, 2 } },
                                        { 2, { 1, 5 } } }),
                    };

                    RUN(cases, 1);
                }

/* ---- convolutions and pools ---------------------------------------------- */

EACH(conv1d, oar_conv1d(tape, in[0], in[1], in[2], NULL),
     oar_dtensor_conv1d(tape, in[0], in[1], &in[2], NULL))
    EACH(conv2d,
         oar_conv2d(tape, in[0], in[1], in[2],
                    OAR_OPTS(oar_conv2d_opts, .stride = { 2, 1 },
                             .padding = { 1, 0 })),
         oar_dtensor_conv2d(tape, in[0], in[1], &in[2],
                            OAR_OPTS(oar_conv2d_opts, .stride = { 2, 1 },
                                     .padding = { 1, 0 })))
        EACH(grouped_conv2d,
             oar_conv2d(tape, in[0], in[1], in[2],
                        OAR_OPTS(oar_conv2d_opts, .groups = 3)),
             oar_dtensor_conv2d(tape, in[0], in[1], &in[2],
                                OAR_OPTS(oar_conv2d_opts, .groups = 3)))
            EACH(conv_transpose1d,
                 oar_conv_transpose1d(tape, in[0], in[1], NULL,
                                      OAR_OPTS(oar_conv_transpose1d_opts,
                                               .stride = 2,
                                               .output_padding = 1)),
                 oar_dtensor_conv_transpose1d(
                     tape, in[0], in[1], NULL,
                     OAR_OPTS(oar_conv_transpose1d_opts, .stride = 2,
                              .output_padding = 1)))
                EACH(conv_transpose2d,
                     oar_conv_transpose2d(tape, in[0], in[1], in[2],
                                          OAR_OPTS(oar_conv_transpose2d_opts,
                                                   .groups = 2)),
                     oar_dtensor_conv_transpose2d(
                         tape, in[0], in[1], &in[2],
                         OAR_OPTS(oar_conv_transpose2d_opts, .groups = 2)))

                    static void convolutions_are_those_of_one_rank(void **state)
                    {
                        const truth_case cases[] = {
                            CASE(conv1d, .inputs = 3,
                                 .shape = { { 3, { 3, 4, 6 } },
                                            { 3, { 5, 4, 3 } },
                                            { 1, { 5 } } }),
                            CASE(conv2d, .inputs = 3,
                                 .shape = { { 4, { 3, 3, 4, 4 } },
                                            { 4, { 4, 3, 3, 2 } },
                                            { 1, { 4 } } }),
                            CASE(grouped_conv2d, .inputs = 3,
                                 .shape = { { 4, { 2, 6, 3, 3 } },
                                            { 4, { 9, 2, 2, 2 } },
                                            { 1, { 9 } } }),
                            CASE(conv_transpose1d, .inputs = 2,
                                 .shape = { { 3, { 2, 4, 3 } },
                                            { 3, { 4, 3, 2 } } }),
                            CASE(conv_transpose2d, .inputs = 3,
                                 .shape = { { 4, { 2, 4, 2, 2 } },
                                            { 4, { 4, 3, 2, 2 } },
                                            { 1, { 6 } } }),
                        };

                        RUN(cases, 1);
                    }

WITH(max_pool2d, oar_max_pool2d, oar_dtensor_max_pool2d, in[0], 2, 2, NULL)
WITH(avg_pool2d, oar_avg_pool2d, oar_dtensor_avg_pool2d, in[0], 3, 2,
     OAR_OPTS(oar_pool2d_opts, .stride = { 1, 2 }, .padding = { 1, 1 }))
WITH(adaptive1, oar_adaptive_avg_pool1d, oar_dtensor_adaptive_avg_pool1d, in[0],
     3)
WITH(adaptive2, oar_adaptive_avg_pool2d, oar_dtensor_adaptive_avg_pool2d, in[0],
     2, 3)

static void pools_are_those_of_one_rank(void **state)
{
    const truth_case cases[] = {
        CASE(max_pool2d, .inputs = 1, .shape = { { 4, { 2, 3, 4, 5 } } }),
        CASE(avg_pool2d, .inputs = 1, .shape = { { 4, { 2, 3, 4, 5 } } }),
        CASE(adaptive1, .inputs = 1, .shape = { { 3, { 2, 3, 5 } } }),
        CASE(adaptive2, .inputs = 1, .shape = { { 4, { 2, 3, 4, 5 } } }),
    };

    RUN(cases, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(probabilities_are_those_of_one_rank),
        cmocka_unit_test(norms_are_those_of_one_rank),
        cmocka_unit_test(losses_are_those_of_one_rank),
        cmocka_unit_test(cross_entropy_is_that_of_one_rank),
        cmocka_unit_test(picking_is_that_of_one_rank),
        cmocka_unit_test(attention_is_that_of_one_rank),
        cmocka_unit_test(convolutions_are_those_of_one_rank),
        cmocka_unit_test(pools_are_those_of_one_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
