#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's half of the tests with it (with-torch); ours is exchange.c.

  torch_side.py FOLDER STEP...

read_plain, read_safetensors, read_dcp: read FOLDER/generations, which exchange
has saved. write_plain, write_safetensors, write_dcp: write files for it into
FOLDER/written. plain is the format in a few lines of this file, for any torch;
safetensors is its own package, dcp torch.distributed.checkpoint with Hugging
Face's files (torch 2.9 or newer). tiny: writes a GPT-2 with random weights by
hand. gpt: writes one by transformers. back: reads what Oarsong wrote of it.
"""
import json
import pathlib
import struct
import sys

import numpy
import torch

# By Oarsong's name: that of safetensors, and numpy's type of as many bytes.
DTYPES = {
    "f32": ("F32", "<f4"), "f64": ("F64", "<f8"), "f16": ("F16", "<f2"),
    "bf16": ("BF16", "<u2"), "i8": ("I8", "i1"), "u8": ("U8", "u1"),
    "i16": ("I16", "<i2"), "u16": ("U16", "<u2"), "i32": ("I32", "<i4"),
    "u32": ("U32", "<u4"), "i64": ("I64", "<i8"), "u64": ("U64", "<u8"),
    "bool": ("BOOL", "?")}
TORCH = {"f32": "float32", "f64": "float64", "f16": "float16",
         "bf16": "bfloat16", "i8": "int8", "u8": "uint8", "i16": "int16",
         "u16": "uint16", "i32": "int32", "u32": "uint32", "i64": "int64",
         "u64": "uint64", "bool": "bool"}
CUTS = ("replicated", "rows", "columns", "flat")


def numbers(name, dtype, shape):
    """What a tensor of this name has, in f64."""
    count = int(numpy.prod(shape, dtype=numpy.int64))
    all = (7 * numpy.arange(count) + sum(name.encode())) % 127
    return (all % 2 if dtype == "bool" else all).reshape(shape).astype("<f8")


def expected(cut):
    """By section and name: dtype and shape, as exchange.c has them."""
    model = {f"{cut}.{dtype}": (dtype, (7, 10)) for dtype in DTYPES}
    model[f"{cut}.cube"] = ("f16", (5, 4, 3))
    model[f"{cut}.scalar"] = ("f32", ())
    model[f"{cut}.empty"] = ("f32", (0, 3))
    optim = {f"state.{cut}.f32.{moment}": ("f32", (7, 10))
             for moment in ("exp_avg", "exp_avg_sq")}
    return {"model": model, "optim": optim}


def check(name, dtype, shape, value):
    """value: a numpy array, of any type, or a tensor."""
    if isinstance(value, torch.Tensor):
        assert value.dtype == getattr(torch, TORCH[dtype]), (name, value.dtype)
        value = value.to(torch.float64).numpy()
    assert value.shape == shape, (name, value.shape)
    assert (value == numbers(name, dtype, shape)).all(), (name, value)


# ---- the format by hand ------------------------------------------------------

def to_f64(raw, dtype):
    """By torch, if it has this dtype; torch 1.13 has only one unsigned."""
    if hasattr(torch, TORCH[dtype]) and raw:
        return torch.frombuffer(bytearray(raw),
                                dtype=getattr(torch, TORCH[dtype])) \
            .to(torch.float64).numpy()
    return numpy.frombuffer(raw, DTYPES[dtype][1]).astype("<f8")


def read_file(path):
    """Gives metadata, and by name dtype and array (f64)."""
    data = pathlib.Path(path).read_bytes()
    size, = struct.unpack("<Q", data[:8])
    header, at = json.loads(data[8:8 + size]), 8 + size
    ours = {theirs: name for name, (theirs, _) in DTYPES.items()}
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype = ours[entry["dtype"]]
        begin, end = entry["data_offsets"]
        part = to_f64(data[at + begin:at + end], dtype)
        tensors[name] = dtype, part.reshape(entry["shape"])
    return header.get("__metadata__", {}), tensors


def write_file(path, tensors):
    """tensors: by name dtype, shape and bytes. Without padding."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": DTYPES[dtype][0], "shape": list(shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def to_bytes(value, dtype):
    if dtype == "bf16":
        return torch.from_numpy(value).to(torch.bfloat16).view(torch.int16) \
            .numpy().tobytes() if value.size else b""
    return value.astype(DTYPES[dtype][1]).tobytes()


# ---- readers -----------------------------------------------------------------

def read_plain(folder, tensors):
    """Puts the parts of all files together, and counts each number once."""
    whole, seen = {}, {}
    for path in sorted(folder.glob("*.safetensors")):
        metadata, found = read_file(path)
        places = json.loads(metadata.get("DCP_SHARDING_INFO", "{}"))
        for name, (dtype, part) in found.items():
            assert dtype == tensors[name][0], (name, dtype)
            offsets = [0] * part.ndim
            if places:
                offsets = places[name]["saved_offsets"]
            at = tuple(slice(o, o + n) for o, n in zip(offsets, part.shape))
            whole.setdefault(name, numpy.zeros(tensors[name][1]))[at] = part
            seen.setdefault(name, numpy.zeros(tensors[name][1]))[at] += 1
    assert whole.keys() == tensors.keys(), whole.keys() ^ tensors.keys()
    for name, (dtype, shape) in tensors.items():
        assert (seen[name] == 1).all(), name
        check(name, dtype, shape, whole[name])


def read_safetensors(folder, tensors):
    """Every file opens; tensors that are whole in one are right."""
    from safetensors import safe_open
    from safetensors.torch import load_file
    for path in folder.glob("*.safetensors"):
        loaded = load_file(path)
        with safe_open(path, "pt") as file:
            assert set(file.keys()) == loaded.keys()
            assert file.metadata()["format"] == "pt"
            for name in file.keys():
                dtype, shape = tensors[name]
                assert torch.equal(file.get_tensor(name), loaded[name])
                if tuple(loaded[name].shape) == shape:
                    check(name, dtype, shape, loaded[name])
    index = folder / "model.safetensors.index.json"
    if index.exists():  # as transformers and others read it
        files = json.loads(index.read_text())["weight_map"]
        assert files.keys() == tensors.keys()
        for name, path in files.items():
            with safe_open(folder / path, "pt") as file:
                check(name, *tensors[name], file.get_tensor(name))


def read_dcp(folder, tensors):
    """Into whole tensors, and into those of another dtype."""
    import torch.distributed.checkpoint as dcp
    reader = dcp.HuggingFaceStorageReader(str(folder))
    state = {name: torch.full(shape, 99, dtype=torch.float32)
             .to(getattr(torch, TORCH[dtype]))
             for name, (dtype, shape) in tensors.items()}
    dcp.load(state, storage_reader=reader, no_dist=True)
    for name, (dtype, shape) in tensors.items():
        check(name, dtype, shape, state[name])
    name = next(name for name in tensors if "f32" in name)
    state = {name: torch.zeros(tensors[name][1], dtype=torch.float64)}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(folder)),
             no_dist=True)
    check(name, "f64", tensors[name][1], state[name])


def read_generations(folder, reader):
    """Steps 1 to 4 have one cut each, 5 has all, 6 replicas as bf16."""
    for step in range(1, 7):
        generation = folder / f"step-{step:012}"
        for section in ("model", "optim"):
            tensors = {}
            for number, cut in enumerate(CUTS, 1):
                if step in (number, 5) or (step, number) == (6, 1):
                    tensors.update(expected(cut)[section])
            if step == 6 and section == "model":
                tensors = {name: ("bf16" if "f" in dtype else dtype, shape)
                           for name, (dtype, shape) in tensors.items()}
            reader(generation / section, tensors)
            print(f"{reader.__name__}: {generation.name}/{section}: "
                  f"{len(tensors)} tensors are right")


# ---- writers -----------------------------------------------------------------

def write_plain(folder, tensors):
    write_file(folder / "plain.safetensors", {
        name: (dtype, shape, to_bytes(numbers(name, dtype, shape), dtype))
        for name, (dtype, shape) in tensors.items()})


def as_tensors(tensors):
    return {name: torch.from_numpy(numbers(name, dtype, shape))
            .to(getattr(torch, TORCH[dtype]))
            for name, (dtype, shape) in tensors.items()}


def write_safetensors(folder, tensors):
    from safetensors.torch import save_file
    save_file(as_tensors(tensors), folder / "package.safetensors",
              {"format": "pt"})


def write_dcp(folder, tensors):
    """As Hugging Face's folder in two files, and as parts."""
    import torch.distributed.checkpoint as dcp
    files = {name: 1 + i % 2 for i, name in enumerate(tensors)}
    for distributed in (False, True):
        dcp.save(as_tensors(tensors), no_dist=True,
                 storage_writer=dcp.HuggingFaceStorageWriter(
                     str(folder / ("dcp-parts" if distributed else "dcp")),
                     fqn_to_index_mapping=files,
                     save_distributed=distributed))


# ---- GPT-2 -------------------------------------------------------------------

GPTS = ("one", "several", "by-dcp")
VOCABULARY, CONTEXT, WIDTH, LAYERS, HEADS = 300, 32, 24, 2, 3
TEXT = "hello world, the wörld 123 don't\n\n  {x} he held it!\t日本\n"


def write_bpe(folder):
    """All bytes, some merges, and the rest of the vocabulary unused."""
    shown = [b for b in range(256) if 33 <= b <= 126 or 161 <= b != 173]
    letters = {b: chr(b) for b in shown}
    letters.update({b: chr(256 + i) for i, b in enumerate(
        b for b in range(256) if b not in letters)})
    space = letters[32]
    merges = ["l l", "h e", "he ll", "hell o", f"{space} w", "o r", "l d",
              f"{space} he", f"{letters[0xe6]} {letters[0x97]}", "1 2",
              f"{space} {space}", f"{letters[10]} {letters[10]}", "' t"]
    tokens = [letters[b] for b in range(256)] + \
        [merge.replace(" ", "") for merge in merges]
    tokens += [f"<{i}>" for i in range(len(tokens), VOCABULARY - 1)]
    tokens.append("<|endoftext|>")
    (folder / "vocab.json").write_text(json.dumps(
        {token: i for i, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text(
        "\n".join(["#version: 0.2", *merges]) + "\n")
    (folder / "text.txt").write_bytes(TEXT.encode())


def gpt(folder):
    """In one file, in several, and by dcp, where a tied head is there twice;
    with logits and tokens to compare."""
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file
    from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer
    torch.manual_seed(3)
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=WIDTH,
        n_layer=LAYERS, n_head=HEADS, bos_token_id=VOCABULARY - 1,
        eos_token_id=VOCABULARY - 1)).eval()
    for parameter in model.parameters():  # biases, too
        parameter.data += 0.1 * torch.randn_like(parameter)
    tokens = torch.randint(VOCABULARY, (3, 11))
    logits = model(tokens).logits.detach().view(-1, VOCABULARY)
    state = model.state_dict()
    for name in GPTS:
        path = folder / name
        if name == "by-dcp":
            dcp.save(state, no_dist=True,
                     storage_writer=dcp.HuggingFaceStorageWriter(
                         str(path), fqn_to_index_mapping={
                             n: 1 + i % 3 for i, n in enumerate(state)}))
            model.config.save_pretrained(path)
        else:
            model.save_pretrained(
                path, max_shard_size="1GB" if name == "one" else "20KB")
        write_bpe(path)
        tokenizer = GPT2Tokenizer.from_pretrained(path)
        save_file({"tokens": tokens, "logits": logits.clone(),
                   "text": torch.tensor(tokenizer.encode(TEXT))},
                  path / "expected.safetensors")
        print(name, sorted(p.name for p in path.iterdir()))


def back(folder):
    """transformers reads what oar_gpt_to_hf wrote, to the last bit."""
    from transformers import GPT2LMHeadModel
    for name in GPTS:
        theirs = GPT2LMHeadModel.from_pretrained(folder / name).state_dict()
        ours = GPT2LMHeadModel.from_pretrained(folder / (name + "-back")) \
            .state_dict()
        assert theirs.keys() == ours.keys()
        assert all(torch.equal(theirs[n], ours[n]) for n in theirs)
        print(f"{name}-back: {len(ours)} tensors are right")


def tiny(folder):
    """In bf16, without dropout, so that losses can be compared."""
    c = WIDTH
    shapes = {"wte.weight": (VOCABULARY, c), "wpe.weight": (CONTEXT, c),
              "ln_f.weight": (c,), "ln_f.bias": (c,)}
    for i in range(LAYERS):
        for name, shape in (("ln_1", (c,)), ("attn.c_attn", (c, 3 * c)),
                            ("attn.c_proj", (c, c)), ("ln_2", (c,)),
                            ("mlp.c_fc", (c, 4 * c)),
                            ("mlp.c_proj", (4 * c, c))):
            shapes[f"h.{i}.{name}.weight"] = shape
            shapes[f"h.{i}.{name}.bias"] = shape[-1:]
    torch.manual_seed(4)
    tensors = {"transformer." + name:
               (0.1 * torch.randn(shape) + (".ln_" in "." + name and
                                            name.endswith("weight")))
               for name, shape in shapes.items()}
    (folder / "tiny").mkdir()
    write_file(folder / "tiny/model.safetensors", {
        name: ("bf16", value.shape, to_bytes(value.numpy(), "bf16"))
        for name, value in tensors.items()})
    (folder / "tiny/config.json").write_text(json.dumps(
        {"model_type": "gpt2", "vocab_size": VOCABULARY, "n_head": HEADS,
         "n_positions": CONTEXT, "n_embd": c, "n_layer": LAYERS,
         "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}))
    write_bpe(folder / "tiny")


print("torch", torch.__version__)
top, written = pathlib.Path(sys.argv[1]), {}
for cut in CUTS:
    written.update(expected(cut)["model"])
(top / "written").mkdir(exist_ok=True)
for step in sys.argv[2:]:
    if step.startswith("read_"):
        read_generations(top / "generations", globals()[step])
    elif step.startswith("write_"):
        globals()[step](top / "written", written)
    else:
        {"gpt": gpt, "back": back, "tiny": tiny}[step](top)
