"""A tiny GPT-2 with the tokens of bpe.json: gpt2.safetensors, as transformers' save_pretrained writes it, and gpt2.h, what generate()
continues a prompt with. Run make_bpe.py first.

    python3 tests/golden/make_gpt2.py"""
import os
import shutil
import sys
import tempfile

import torch
import transformers
from tokenizers import Tokenizer

transformers.logging.set_verbosity_error()
here = os.path.dirname(os.path.abspath(sys.argv[0]))
tok = Tokenizer.from_file(os.path.join(here, "bpe.json"))
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=tok.get_vocab_size(), n_positions=64,
                                                             bos_token_id=0, eos_token_id=None))
g = torch.Generator().manual_seed(1)
with torch.no_grad():
    for k, p in model.named_parameters():
        p.copy_(torch.randn(p.shape, generator=g) * (0.2 if "wte" in k else 0.8 if p.dim() > 1 else 0.1) + (1 if ".ln_" in k and "weight" in k else 0))
model.eval()
with tempfile.TemporaryDirectory() as d:
    model.save_pretrained(d)
    shutil.copy(os.path.join(d, "model.safetensors"), os.path.join(here, "gpt2.safetensors"))
prompt = "The model is a function"
ids = tok.encode(prompt).ids
out = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=40, pad_token_id=0)[0].tolist()
with torch.no_grad():
    top = model(torch.tensor([out])).logits[0, len(ids) - 1:-1].topk(2).values
print("smallest lead of the best token: %.4f" % (top[:, 0] - top[:, 1]).min())
with open(os.path.join(here, "gpt2.h"), "w") as f:
    f.write("/* Made by make_gpt2.py with transformers %s: a prompt, and the tokens that generate(do_sample=False) has after it. */\n" % transformers.__version__)
    f.write('static const char gpt2_prompt[] = "%s";\n' % prompt)
    f.write("static const int64_t gpt2_prompt_ids[] = { %s };\n" % ", ".join(map(str, ids)))
    f.write("static const int64_t gpt2_next_ids[] = { %s };\n" % ", ".join(map(str, out[len(ids):])))
    f.write("static const char gpt2_text[] = \"%s\";\n" % "".join("\\%03o" % b for b in tok.decode(out, skip_special_tokens=False).encode()))
