/* SPDX-License-Identifier: Apache-2.0 */
/* nn/attention_layer.h: what models ask of an attention layer besides its
 * options. */
#ifndef OARI_NN_ATTENTION_LAYER_H
#define OARI_NN_ATTENTION_LAYER_H

#include <oarsong/module.h>

/* Lets backward compute q, k and v once more instead of keeping them. Changes
 * nothing for a layer with rotary positions. */
void oari_attention_rebuild_qkv(oar_module *module);

#endif
