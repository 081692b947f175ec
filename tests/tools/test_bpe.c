/* test_bpe.c: examples/bpe.h: tokens and texts are those of PyPI's tokenizers (golden/make_bpe.py), damaged and foreign files are
   errors that say where. */
#include "dt_test.h"

#include "examples/bpe.h"
#include "golden/bpe.h"
#include "temp_files.h"

UTEST_STATE();
int main(int argc, const char *const *argv) { return utest_main(argc, argv); }

static const char *const path = "tests/golden/bpe.json";

UTEST(bpe, makes_the_tokens_of_tokenizers)
{
    bpe    *b = bpe_open(path);
    int64_t ids[1024];
    ASSERT_TRUE_MSG(b != NULL, dt_error());
    for (size_t i = 0; i < sizeof bpe_cases / sizeof *bpe_cases; i++) {
        const bpe_case *c = &bpe_cases[i];
        int64_t         n = bpe_encode(b, c->text, (size_t)c->nbytes, ids, 1024), wrong = -1;
        for (int64_t k = 0; k < n && k < c->ntokens && wrong < 0; k++) wrong = ids[k] == c->ids[k] ? -1 : k;
        EXPECT_TRUE_MSG(n == c->ntokens && wrong < 0, c->text);
        char   back[2048];
        size_t m = bpe_decode(b, ids, n, true, back, sizeof back);
        EXPECT_TRUE_MSG(m == (size_t)c->nback && !memcmp(back, c->back, m), c->text);
    }
    bpe_free(b);
}
UTEST(bpe, decodes_parts_of_characters_and_unknown_tokens)
{
    bpe *b = bpe_open(path);
    ASSERT_TRUE(b != NULL);
    for (size_t i = 0; i < sizeof bpe_parts / sizeof *bpe_parts; i++)
        for (int special = 0; special < 2; special++) {
            char    bytes[64], text[256];
            int64_t ids[8];
            for (int k = 0; k < bpe_parts[i].n; k++) ids[k] = bpe_parts[i].ids[k];
            size_t n = bpe_decode(b, ids, bpe_parts[i].n, special, bytes, sizeof bytes),
                   m = bpe_repair(bytes, n, text, sizeof text);
            text[m] = 0;
            EXPECT_STREQ(special ? bpe_parts[i].back : bpe_parts[i].without, text);
        }
    int64_t negative[2] = { -1, INT64_MIN };
    EXPECT_EQ(0u, bpe_decode(b, negative, 2, true, NULL, 0));
    bpe_free(b);
}
UTEST(bpe, says_how_many_tokens_and_bytes_there_would_be)
{
    bpe    *b = bpe_open(path);
    int64_t ids[3] = { -7, -7, -7 }, all[100];
    char    text[8];
    ASSERT_TRUE(b != NULL);
    int64_t n = bpe_encode(b, "a gradient descents", 19, all, 100);
    EXPECT_EQ(n, bpe_encode(b, "a gradient descents", 19, ids, 2));
    EXPECT_TRUE(ids[0] == all[0] && ids[1] == all[1] && ids[2] == -7);
    memset(text, '#', sizeof text);
    EXPECT_EQ(19u, bpe_decode(b, all, n, true, text, 4));
    EXPECT_TRUE(!memcmp(text, "a gr####", 8));
    EXPECT_EQ(702, bpe_vocab(b));
    EXPECT_EQ(0, bpe_find(b, "<|endoftext|>"));
    EXPECT_EQ(-1, bpe_find(b, "<|endoftext"));
    bpe_free(b);
}
/* A megabyte of one letter in one word: the time must not be quadratic. */
UTEST(bpe, takes_long_words)
{
    bpe    *b = bpe_open(path);
    size_t  n = 1 << 20;
    char   *text = malloc(n);
    int64_t m;
    ASSERT_TRUE(b && text);
    memset(text, 'e', n);
    m = bpe_encode(b, text, n, NULL, 0);
    EXPECT_TRUE(m > 0 && m <= (int64_t)n);
    free(text);
    bpe_free(b);
}

/* ---- other files. A small tokenizer with a part replaced */
static const char *const small =
    "{\"added_tokens\": [{\"id\": 4, \"content\": \"<x>\", \"special\": true}], \"normalizer\": null,\n"
    " \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"use_regex\": true},\n"
    " \"model\": {\"type\": \"BPE\", \"merges\": [\"a b\"], \"ignore_merges\": false,\n"
    "  \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, \"\\u0120\": 3, \"\\u0120aa\": 5}}}";
static bpe *with(const char *from, const char *to)
{
    char        text[4096];
    const char *at = strstr(small, from);
    if (!at) return NULL;
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - small), small, to, at + strlen(from));
    return bpe_parse(text, strlen(text), "small");
}
static bool gives(bpe *b, const char *text, const char *want)
{
    int64_t ids[64];
    char    got[256] = "";
    size_t  at = 0;
    int64_t n = b ? bpe_encode(b, text, strlen(text), ids, 64) : -1;
    for (int64_t i = 0; i < n; i++) at += (size_t)snprintf(got + at, sizeof got - at, "%s%d", i ? " " : "", (int)ids[i]);
    bpe_free(b);
    if (n < 0 || strcmp(got, want)) printf("    '%s' gave %s, expected %s\n", text, n < 0 ? dt_error() : got, want);
    return n >= 0 && !strcmp(got, want);
}
UTEST(bpe, options_of_a_file)
{
    EXPECT_TRUE(
        gives(with("true,", "true,"), "abc a", "3 2 3 0")); /* a blank is put in front; c has no token and is left out */
    EXPECT_TRUE(gives(with("\"add_prefix_space\": true", "\"add_prefix_space\": false"), "ab", "2"));
    EXPECT_TRUE(gives(with("\"ignore_merges\": false", "\"ignore_merges\": true"), "aa", "5"));
    EXPECT_TRUE(gives(with("\"a b\"", "[\"a\", \"b\"]"), "ab", "3 2"));
    EXPECT_TRUE(gives(with("\"use_regex\": true", "\"use_regex\": false"), "a a<x>b", "3 0 3 0 4 3 1"));
    EXPECT_TRUE(gives(with("\"special\": true", "\"lstrip\": true"), "a  <x>  b", "3 0 4 3 3 1"));
}
UTEST(bpe, refuses_what_it_does_not_do)
{
    EXPECT_ERROR(with("\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}"),
                 "small: line 1, column 80: a normalizer is not supported");
    EXPECT_ERROR(with("\"ByteLevel\"", "\"Sequence\""),
                 "line 2, column 28: a pre_tokenizer of type Sequence is not supported; it must be ByteLevel");
    EXPECT_ERROR(with("\"BPE\"", "\"WordPiece\""), "a model of type WordPiece is not supported; it must be BPE");
    EXPECT_ERROR(with("\"special\": true", "\"single_word\": true"), "single_word is not supported");
    EXPECT_ERROR(with("\"ignore_merges\": false", "\"dropout\": 0.1"), "dropout is not supported");
    EXPECT_ERROR(with("\"ignore_merges\": false", "\"byte_fallback\": true"), "byte_fallback is not supported");
    EXPECT_ERROR(with("\"ignore_merges\": false", "\"unk_token\": \"a\""), "unk_token needs a vocabulary with all 256 bytes");
    EXPECT_ERROR(with("\"ignore_merges\": false", "\"end_of_word_suffix\": \"</w>\""), "prefixes and suffixes");
    EXPECT_ERROR(with("\"a b\"", "\"a c\""),
                 "small: line 3, column 38: this merge has or makes a token that is not in the vocabulary");
    EXPECT_ERROR(with("\"a b\"", "\"ab\""), "two tokens with a blank");
    EXPECT_ERROR(with("\"a b\"", "\"a b\", [\"a\", \"b\"]"), "this merge is there twice");
    EXPECT_ERROR(with("\"b\": 1", "\"b\": 0"), "line 4, column 21: another token has this number");
    EXPECT_ERROR(with("\"b\": 1", "\"a\": 0"), "this token is there twice");
    EXPECT_ERROR(with("\"b\": 1", "\"b\": -1"), "a token's number must be 0 to 1048575");
    EXPECT_ERROR(with("\"b\": 1", "\"b\": 1.5"), "a token's number");
    EXPECT_ERROR(with("\"b\": 1", "\"b\": 1e9"), "a token's number");
    EXPECT_ERROR(with("\"b\": 1", "\"b\": nan"), "expected a value");
    EXPECT_ERROR(with("\"b\": 1", "\"\\ud800\": 1"), "half of a surrogate pair");
    EXPECT_ERROR(with("\"b\": 1", "\"\\x\": 1"), "unknown escape");
    EXPECT_ERROR(with("\"b\": 1", "\"\xff\": 1"), "this is not UTF-8");
    EXPECT_ERROR(with("\"normalizer\"", "\"model\": {}, \"normalizer\""), "this key is there twice");
    EXPECT_ERROR(with("\"vocab\"", "\"words\""), "the model needs vocab and merges");
    EXPECT_ERROR(with("5}}}", "5}}} x"), "more text behind the end");
    EXPECT_ERROR(bpe_open("tests/golden/none.json"), "none.json: this file cannot be opened");
    char deep[600];
    memset(deep, '[', sizeof deep);
    deep[0] = '{', deep[1] = '"', deep[2] = '"', deep[3] = ':', deep[599] = 0;
    EXPECT_ERROR(bpe_parse(deep, 599, "deep"), "nested too deeply");
}
/* Every beginning of a file, and files with changed bytes: an error with a position, or a tokenizer; never more. */
UTEST(bpe, damaged_files_are_errors)
{
    size_t   n;
    char    *text = json_file(path, &n), *other = malloc(n + 1);
    uint64_t r = 1;
    ASSERT_TRUE(text && other);
    for (size_t k = 0; k < n; k += dt_test_quick() ? 97 : 1) {
        memcpy(other, text, k); /* an own block, so that AddressSanitizer sees a read behind its end */
        char *cut = malloc(k + 1);
        memcpy(cut, text, k);
        EXPECT_TRUE(bpe_parse(cut, k, "cut") == NULL && strstr(dt_error(), "cut: line "));
        dt_error_clear();
        free(cut);
    }
    for (int k = 0; k < (dt_test_quick() ? 200 : 3000); k++) {
        memcpy(other, text, n);
        for (int i = 0; i < 3; i++)
            r = r * 6364136223846793005ull + 1442695040888963407ull, other[(r >> 33) % n] = (char)(r >> 25);
        bpe *b = bpe_parse(other, n, "other");
        if (b) bpe_encode(b, "some text <|endoftext|>", 23, NULL, 0);
        else EXPECT_TRUE(strstr(dt_error(), "other: line ") != NULL);
        bpe_free(b);
        dt_error_clear();
    }
    free(text), free(other);
}
