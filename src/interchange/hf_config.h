/* SPDX-License-Identifier: Apache-2.0 */
/* interchange/hf_config.h: config.json of a GPT-2, as transformers has it. */
#ifndef OARI_INTERCHANGE_HF_CONFIG_H
#define OARI_INTERCHANGE_HF_CONFIG_H

#include <oarsong/models.h>

/* Completes the options of a model whose vocabulary, context, width, layers and
 * hidden are known from the shapes of its tensors, and compares those. where is
 * the folder, for errors. text NULL: there is no config.json. */
oar_status oari_hf_config_read(const char *where, const char *text,
                               size_t bytes, oar_gpt_opts *opts);

/* Gives the text of a config.json, which oari_free frees. OAR_E_UNSUPPORTED if
 * transformers has no name for the activation. */
oar_status oari_hf_config_write(const oar_gpt_opts *opts, char **text);

#endif
