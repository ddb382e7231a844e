/* SPDX-License-Identifier: Apache-2.0 */
/* layer_kind: which layer a module is, by its class. */
#include <oarsong/layers.h>

#include "nn/build.h"

oar_layer_kind oar_layer_kind_of(const oar_module *module)
{
    static const struct {
        const oar_module_class *class;
        oar_layer_kind kind;
    } known[] = {
        { &oari_linear_class, OAR_LAYER_LINEAR },
        { &oari_embedding_class, OAR_LAYER_EMBEDDING },
        { &oari_layer_norm_class, OAR_LAYER_LAYER_NORM },
        { &oari_rms_norm_class, OAR_LAYER_RMS_NORM },
        { &oari_dropout_class, OAR_LAYER_DROPOUT },
        { &oari_attention_class, OAR_LAYER_ATTENTION },
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (oar_module_is(module, known[i].class))
            return known[i].kind;
    return OAR_LAYER_OTHER;
}
