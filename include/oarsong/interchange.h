/* SPDX-License-Identifier: Apache-2.0 */
/* interchange.h: GPT models in the files of other programs: Hugging Face's
 * GPT-2 and llm.c. docs/formats.md has both formats.
 *
 * Nothing in a file is believed: sizes are compared with the bytes that are
 * there before anything is allocated for them. A file that is damaged or
 * contradicts itself is OAR_E_DATA. A model that oar_gpt_create cannot make, or
 * that the other format cannot hold, is OAR_E_UNSUPPORTED; the sentence names
 * the setting and its value. Models have at most 1000 layers.
 *
 * The functions that read give a module with parameters of `dtype`, converted
 * from what the file has, in evaluation mode (oar_module_train). *opts gets the
 * options that make such a module; it has its size set, or is NULL.
 *
 * The functions that write take the module that oar_gpt_create or one of these
 * functions gave, not one that wraps it. Each file is written under another
 * name, synced, and renamed.
 */
#ifndef OARSONG_INTERCHANGE_H
#define OARSONG_INTERCHANGE_H

#include <oarsong/models.h>

OAR_BEGIN_DECLS

/* Reads a GPT-2 as transformers saves it. path is a folder with
 * model.safetensors, or with model.safetensors.index.json and the files that it
 * names; or it is a .safetensors file. config.json in the same folder gives
 * the number of heads, the activation, dropouts and whether the head is tied,
 * with transformers' defaults for what it leaves out. Without a config.json the
 * model is taken for one of GPT-2's own: heads of 64, GELU by tanh, a tied
 * head, no dropout. */
OAR_API oar_status oar_gpt_from_hf(const char *path, oar_dtype dtype,
                                   oar_module **module, oar_gpt_opts *opts);

/* Writes model.safetensors, then config.json, so that transformers'
 * GPT2LMHeadModel and oar_gpt_from_hf read them. Makes the folder if it is not
 * there; its parent must be. If the machine stops in between, an older
 * config.json stays: write to a new folder where that matters. */
OAR_API oar_status oar_gpt_to_hf(const oar_module *module, const char *folder);

/* Reads a model file of llm.c, version 3 (f32) or 5 (bf16). Its vocabulary is
 * padded with rows that stand for no token; they stay, and count as vocabulary,
 * unless `trim`. */
OAR_API oar_status oar_gpt_from_llmc(const char *path, oar_dtype dtype,
                                     int trim, oar_module **module,
                                     oar_gpt_opts *opts);

/* Writes a model file of llm.c: version 3 of an f32 module, 5 of a bf16 one.
 * The vocabulary is padded with zeros to a multiple of 128. Dropouts are not
 * written. */
OAR_API oar_status oar_gpt_to_llmc(const oar_module *module, const char *path);

OAR_END_DECLS

#endif
