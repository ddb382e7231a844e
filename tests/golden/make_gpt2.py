#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes gpt2.golden and the files in gpt2/ with PyTorch (Debian: apt-get
install python3-torch).

gpt2/model.safetensors and gpt2/config.json are a GPT-2 as transformers saves
it, gpt2/f32.bin and gpt2/bf16.bin as llm.c does: random weights of tiny sizes.
Both formats are written here, byte by byte, so that they do not depend on what
Oarsong writes. gpt2.golden (records.py) has the tokens and the logits that the
forward below computes of them: f32.out, and bf16.out with rounded weights.
"""
import json
import pathlib
import struct

import torch

from records import put, write

VOCABULARY, CONTEXT, WIDTH, LAYERS, HEADS, PADDED = 11, 8, 6, 2, 2, 128
HERE = pathlib.Path(__file__).parent
FOLDER = HERE / "gpt2"

# llm.c's order; each kind for all layers.
FIRST = ("wte.weight", "wpe.weight")
LAYER = ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias",
         "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight", "ln_2.bias",
         "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight",
         "mlp.c_proj.bias")
LAST = ("ln_f.weight", "ln_f.bias")

torch.manual_seed(12)


def random_weights():
    """By Hugging Face's names; Conv1D weights are [in, out]."""
    w, r = {}, torch.randn
    c = WIDTH

    def norm(name):
        w[name + ".weight"], w[name + ".bias"] = 1 + 0.2 * r(c), 0.2 * r(c)

    def conv1d(name, inputs, outputs):
        w[name + ".weight"] = r(inputs, outputs) / inputs**0.5
        w[name + ".bias"] = 0.2 * r(outputs)

    w["wte.weight"], w["wpe.weight"] = r(VOCABULARY, c), 0.5 * r(CONTEXT, c)
    for i in range(LAYERS):
        norm(f"h.{i}.ln_1")
        conv1d(f"h.{i}.attn.c_attn", c, 3 * c)
        conv1d(f"h.{i}.attn.c_proj", c, c)
        norm(f"h.{i}.ln_2")
        conv1d(f"h.{i}.mlp.c_fc", c, 4 * c)
        conv1d(f"h.{i}.mlp.c_proj", 4 * c, c)
    norm("ln_f")
    return w


# ---- the model ---------------------------------------------------------------

def forward(weights, tokens):
    """The logits, computed in f64."""
    w = {name: value.double() for name, value in weights.items()}

    def norm(x, name):
        return torch.nn.functional.layer_norm(
            x, (WIDTH,), w[name + ".weight"], w[name + ".bias"], 1e-5)

    def conv1d(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    def attention(x, name):
        n, t, _ = x.shape
        q, k, v = (part.view(n, t, HEADS, -1).transpose(1, 2) for part in
                   conv1d(x, name + ".c_attn").split(WIDTH, -1))
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS)**0.5
        later = torch.ones(t, t).triu(1).bool()
        y = scores.masked_fill(later, -torch.inf).softmax(-1) @ v
        return conv1d(y.transpose(1, 2).reshape(n, t, WIDTH), name + ".c_proj")

    def mlp(x, name):
        h = conv1d(x, name + ".c_fc")
        h = 0.5 * h * (1 + torch.tanh((2 / torch.pi)**0.5 *
                                      (h + 0.044715 * h**3)))
        return conv1d(h, name + ".c_proj")

    x = w["wte.weight"][tokens] + w["wpe.weight"][:tokens.shape[1]]
    for i in range(LAYERS):
        x = x + attention(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn")
        x = x + mlp(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp")
    return norm(x, "ln_f") @ w["wte.weight"].t()


# ---- Hugging Face ------------------------------------------------------------

def write_safetensors(path, weights):
    """With the masks of older versions, which are not parameters."""
    tensors = {"transformer." + name: ("F32", value.shape,
                                       value.numpy().astype("<f4").tobytes())
               for name, value in weights.items()}
    mask = bytes(int(a >= b) for a in range(CONTEXT) for b in range(CONTEXT))
    for i in range(LAYERS):
        tensors[f"transformer.h.{i}.attn.bias"] = (
            "BOOL", (1, 1, CONTEXT, CONTEXT), mask)
        tensors[f"transformer.h.{i}.attn.masked_bias"] = (
            "F32", (), struct.pack("<f", -1e4))
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, numbers) in sorted(tensors.items()):
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [len(data), len(data) + len(numbers)]}
        data += numbers
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_config(path):
    path.write_text(json.dumps({
        "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1,
        "bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "model_type": "gpt2",
        "n_ctx": CONTEXT, "n_embd": WIDTH, "n_head": HEADS, "n_inner": None,
        "n_layer": LAYERS, "n_positions": CONTEXT,
        "reorder_and_upcast_attn": False,
        "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True,
        "summary_type": "cls_index", "transformers_version": "4.38.0",
        "use_cache": True, "vocab_size": VOCABULARY}, indent=2) + "\n")


# ---- llm.c -------------------------------------------------------------------

def write_llmc(path, weights, version):
    numbers = [20240326, version, CONTEXT, VOCABULARY, LAYERS, HEADS, WIDTH,
               PADDED]
    file = struct.pack("<256i", *numbers, *[0] * (256 - len(numbers)))
    names = [*FIRST, *(f"h.{i}.{name}" for name in LAYER
                       for i in range(LAYERS)), *LAST]
    for name in names:
        value = weights[name]
        if ".c_" in name and name.endswith(".weight"):
            value = value.t()
        if name == "wte.weight":
            value = torch.cat([value, torch.zeros(PADDED - VOCABULARY, WIDTH)])
        value = value.contiguous()
        if version == 3:
            file += value.numpy().astype("<f4").tobytes()
        else:
            file += value.bfloat16().view(torch.int16).numpy() \
                .astype("<i2").tobytes()
    path.write_bytes(file)


weights = random_weights()
rounded = {name: value.bfloat16().float() for name, value in weights.items()}
tokens = torch.randint(VOCABULARY, (3, 7))
FOLDER.mkdir(exist_ok=True)
write_safetensors(FOLDER / "model.safetensors", weights)
write_config(FOLDER / "config.json")
write_llmc(FOLDER / "f32.bin", weights, 3)
write_llmc(FOLDER / "bf16.bin", rounded, 5)
put("tokens.in0", tokens)
put("f32.out", forward(weights, tokens).view(-1, VOCABULARY))
put("bf16.out", forward(rounded, tokens).view(-1, VOCABULARY))
write(HERE / "gpt2.golden")
