"""Byte-pair tokens of examples/bpe.h: a tokenizer trained with PyPI's tokenizers on texts of this repository (bpe.json, as
tokenizer.json of a GPT-2), and what it makes of difficult strings (bpe.h), both beside this file.

    python3 tests/golden/make_bpe.py
    python3 tests/golden/make_bpe.py --classes      prints the tables of letters, numbers and spaces of examples/bpe.h"""
import os
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
import tokenizers

here = os.path.dirname(os.path.abspath(sys.argv[0]))


def classes():
    """What the regular expression of ByteLevel takes each character for, asked of tokenizers itself."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    one = lambda a, b: len(split.pre_tokenize_str(a + b)) == 1
    kinds = {"letters": [], "numbers": [], "spaces": []}
    for c in range(0x110000):
        if 0xd800 <= c < 0xe000:
            continue
        ch = chr(c)
        kind = "letters" if one("a", ch) else "numbers" if one("1", ch) else None if one("!", ch) else "spaces"
        if kind is None:
            continue
        r = kinds[kind]
        if r and r[-1][1] == c - 1:
            r[-1][1] = c
        else:
            r.append([c, c])
    for kind, ranges in kinds.items():
        print("static const uint32_t bpe__%s[][2] = {" % kind)
        line = "   "
        for a, b in ranges:
            word = " { 0x%x, 0x%x }," % (a, b)
            if len(line) + len(word) > 127:
                print(line)
                line = "   "
            line += word
        print(line + "\n};")


if "--classes" in sys.argv:
    classes()
    sys.exit(0)

tok = Tokenizer(models.BPE())
tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tok.decoder = decoders.ByteLevel()
tok.post_processor = processors.ByteLevel(trim_offsets=True)
files = [os.path.join(here, "..", "..", f) for f in ("README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/extending.md", "LICENSE")]
trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                              show_progress=False)
tok.train(files, trainer)
tok.add_tokens([AddedToken("<pad>", lstrip=True, rstrip=True, normalized=False, special=True), AddedToken("gradient descent", normalized=True)])
tok.save(os.path.join(here, "bpe.json"), pretty=False)

strings = [
    b"", b" ", b"a", b"Hello, world!", b"The model is a function; the function is the model.", b"  two  spaces   three    four",
    b"trailing   ", b"   ", b"\n", b"\n\n\n", b"a\nb\r\nc\td", b" \n \n x", b"line\n    indented\n\tand tabbed  \n",
    b"I'm you're he's we've they'll don't she'd", b"'s't're've'm'll'd", b"IT'S I'M YOU'RE", b"'hello' ''quoted'' 'tis",
    b"1234567890 3.14159 1e-5 0x7f 42nd x2 2x", b"f(x) = x**2 + 1; // comment", b"https://example.org/a?b=c&d=e#f", b"!!!???...---___===",
    "caf\u00e9 na\u00efve \u00fcber stra\u00dfe \u0141\u00f3d\u017a".encode(), "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! 2026 \u0433.".encode(),
    "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u03ba\u03cc\u03c3\u03bc\u03b5".encode(), "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u4e00\u4e8c\u4e09".encode(),
    "\u3053\u3093\u306b\u3061\u306f \u4e16\u754c \u30c6\u30b9\u30c8".encode(), "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4".encode(),
    "\u0645\u0631\u062d\u0628\u0627 \u0661\u0662\u0663".encode(), "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd".encode(),
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0967\u0968\u0969".encode(), "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35".encode(),
    "\U0001f600\U0001f680 \U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f \U0001f1e9\U0001f1ea".encode(), "\U0001d400\U0001d7ce \u2163 \u00bd \u00b2 \u2460".encode(),
    "a\u00a0b\u2003c\u3000d\u2028e\u0085f\u1680g\u200bh\ufeffi".encode(), "e\u0301 \u0301x a\u0308\u0304".encode(), b"\x00\x01\x02 \x7f \x1b[0m",
    b"<|endoftext|>", b"a<|endoftext|>b", b"<|endoftext|><|endoftext|> x", b"<|endoftext", b"x  <pad>  y<pad>", b"gradient descent", b"a gradient descents",
    b"dt_tensor *dt_linear(dt_model *m, const char *name, dt_tensor *x);", b"supercalifragilisticexpialidocious antidisestablishmentarianism",
    b"a" * 300, b"ab" * 100, b" " * 100 + b"x", b"the the the the",
    b"\xff", b"abc\xffdef", b"\xc3", b"\xc3(", b"\xe2\x82", b"\xe2\x82 x", b"\xf0\x9f\x98", b"\xf0\x9f\x98\x80\x80", b"\xc0\x80 \xed\xa0\x80 \xf4\x90\x80\x80",
    b"\xe0\x80\x80\xf8\x88\x80\x80\x80", b"\x80\x81\x82 \xbf",
]
with open(os.path.join(here, "bpe.h"), "w") as f:
    f.write("/* Made by make_bpe.py with tokenizers %s: texts, their tokens, and what these tokens are as a text. */\n" % tokenizers.__version__)
    f.write("typedef struct bpe_case {\n    const char *text;\n    int         nbytes, ntokens;\n    const short *ids;\n    const char *back; /* with special tokens */\n"
            "    int         nback;\n} bpe_case;\n")
    text = lambda b: '"' + "".join("\\%03o" % c for c in b) + '"'
    plain = lambda b: text(b) if any(c < 32 or c > 126 or c in b'"\\?' for c in b) else '"%s"' % b.decode()
    rows = []
    for i, s in enumerate(strings):
        ids = tok.encode(s.decode("utf-8", errors="replace"), add_special_tokens=False).ids
        back = tok.decode(ids, skip_special_tokens=False).encode()
        f.write("static const short bpe_ids_%d[] = { %s };\n" % (i, ", ".join(map(str, ids + [-1]))))
        rows.append("    { %s, %d, %d, bpe_ids_%d,\n      %s, %d },\n" % (plain(s), len(s), len(ids), i, plain(back), len(back)))
    f.write("static const bpe_case bpe_cases[] = {\n" + "".join(rows) + "};\n")
    # a part of the bytes of a character: the decoder repairs
    odd = [tok.encode("\U0001f600").ids[:k] for k in range(1, len(tok.encode("\U0001f600").ids))] + [[5, 10 ** 6, 6, 0, 7]]
    f.write("static const struct {\n    int         ids[8], n;\n    const char *back, *without; /* without special tokens */\n} bpe_parts[] = {\n")
    for ids in odd:
        f.write("    { { %s }, %d, %s, %s },\n" % (", ".join(map(str, ids)), len(ids), text(tok.decode(ids, skip_special_tokens=False).encode()),
                                                  text(tok.decode(ids, skip_special_tokens=True).encode())))
    f.write("};\n")
print(tok.get_vocab_size(), os.path.getsize(os.path.join(here, "bpe.json")), os.path.getsize(os.path.join(here, "bpe.h")))
