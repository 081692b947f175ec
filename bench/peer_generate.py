"""PyTorch's sides of bench_generate.c: a GPT-2 of 124 million parameters writes tokens, greedily, with a cache.

    python3 bench/peer_generate.py plain|transformers FILE THREADS TOKENS

Says "begin", "loss N" for five of the tokens, "ready", then for each line it reads from stdin "rate X", tokens a second from the
first to the last, and at the end "memory X", its peak in MiB."""
import resource
import sys
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

how, path, threads, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(threads)
PROMPT, LAYERS, HEADS, DIM, VOCAB = 16, 12, 12, 768, 50257
prompt = [(i * 7919 + 11) % VOCAB for i in range(PROMPT)]
w = {k: v.clone() for k, v in load_file(path).items()}

if how == "transformers":
    import transformers

    transformers.logging.set_verbosity_error()
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(attn_implementation="sdpa"))
    missing, unexpected = model.load_state_dict({"transformer." + k: v for k, v in w.items()}, strict=False)
    assert not unexpected and missing in ([], ["lm_head.weight"]), (missing, unexpected)
    model.tie_weights()
    model.eval()
    del w

    def begin():
        return transformers.DynamicCache()

    def logits(ids, at, cache):
        return model(torch.tensor([ids]), past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1]
else:
    for k in w:  # (in, out) as it is in the file is what addmm takes; out by in, contiguous, is measured to be no faster
        w[k] = w[k].contiguous()
    keys = torch.zeros(LAYERS, 2, 1, HEADS, PROMPT + count, DIM // HEADS)

    def begin():
        return keys

    def logits(ids, at, cache):
        t = len(ids)
        x = w["wte.weight"][torch.tensor(ids)] + w["wpe.weight"][at:at + t]
        for i in range(LAYERS):
            p = "h.%d." % i
            a = F.layer_norm(x, (DIM,), w[p + "ln_1.weight"], w[p + "ln_1.bias"])
            qkv = torch.addmm(w[p + "attn.c_attn.bias"], a, w[p + "attn.c_attn.weight"]).view(1, t, 3, HEADS, DIM // HEADS)
            q, k, v = (y.transpose(1, 2) for y in qkv.unbind(2))
            cache[i, 0, :, :, at:at + t] = k
            cache[i, 1, :, :, at:at + t] = v
            a = F.scaled_dot_product_attention(q, cache[i, 0, :, :, :at + t], cache[i, 1, :, :, :at + t], is_causal=t > 1)
            a = a.transpose(1, 2).reshape(t, DIM)
            x = torch.addmm(x + w[p + "attn.c_proj.bias"], a, w[p + "attn.c_proj.weight"])
            a = F.layer_norm(x, (DIM,), w[p + "ln_2.weight"], w[p + "ln_2.bias"])
            a = F.gelu(torch.addmm(w[p + "mlp.c_fc.bias"], a, w[p + "mlp.c_fc.weight"]), approximate="tanh")
            x = torch.addmm(x + w[p + "mlp.c_proj.bias"], a, w[p + "mlp.c_proj.weight"])
        x = F.layer_norm(x[-1:], (DIM,), w["ln_f.weight"], w["ln_f.bias"])
        return F.linear(x, w["wte.weight"])[0]


def generate():
    ids, cache, t = list(prompt), begin(), 0
    with torch.inference_mode():
        for i in range(count):
            new = ids if i == 0 else ids[-1:]
            ids.append(int(logits(new, len(ids) - len(new), cache).argmax()))
            if i == 0:
                t = time.perf_counter()
    return ids, time.perf_counter() - t


print("begin", flush=True)
ids, _ = generate()
for i in range(5):
    print("loss %d" % ids[PROMPT + i * (count - 1) // 4])
print("ready", flush=True)
for _ in sys.stdin:
    print("rate %.9g" % ((count - 1) / generate()[1]), flush=True)
print("memory %.3f" % (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
