/* bpe.h - byte-pair tokens: a text to numbers and back, with the tokenizer.json of a GPT-2 (HuggingFace's tokenizers)

       bpe *b = bpe_open("tokenizer.json");
       int64_t n = bpe_encode(b, text, strlen(text), ids, room);         how many tokens; at most `room` are stored
       size_t  m = bpe_decode(b, ids, n, true, text, sizeof text);       how many bytes; ends with a 0 if there is room
       bpe_free(b);

   Include it after dt_base.h; errors are those of dt: NULL or a negative status, and dt_error() says file, line and column.

   What it understands: models of type BPE on bytes, with the pre-tokenizer ByteLevel (GPT-2, RoBERTa and others; not the Split
   of Llama 3), without a normalizer; added and special tokens; merges as pairs or as "a b"; ignore_merges. A file that asks for
   anything else is refused, by name. The tokens are those of tokenizers' encode(text, add_special_tokens=False); bytes that are
   not UTF-8 become U+FFFD, as in Python's errors="replace". */
#ifndef EXAMPLE_BPE_H_INCLUDED
#define EXAMPLE_BPE_H_INCLUDED

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bpe bpe;
static inline bpe    *bpe_open(const char *path);
static inline bpe    *bpe_parse(const char *json, size_t n, const char *name); /* name: for messages */
static inline void    bpe_free(bpe *b);
static inline int64_t bpe_vocab(const bpe *b);                       /* the largest token + 1 */
static inline int64_t bpe_find(const bpe  *b,
                               const char *token); /* as it is written in the file: "<|endoftext|>"; -1: there is none */
static inline int64_t bpe_encode(const bpe *b, const char *text, size_t n, int64_t *ids,
                                 int64_t room); /* or a negative status */
/* The bytes of the tokens, which may end inside a character; unknown tokens have none. special: with special tokens */
static inline size_t  bpe_decode(const bpe *b, const int64_t *ids, int64_t n, bool special, char *out, size_t room);
/* The text with U+FFFD in place of what is not UTF-8; returns its bytes, of which at most room are stored. */
static inline size_t  bpe_repair(const char *text, size_t n, char *out, size_t room);

/* ---------------------------------------------------------------------------------------------------- JSON
   A cursor over a text. Each function returns false after an error. Only UTF-8 is let through, nesting is limited. */
enum { JSON_DEPTH = 64, JSON_STRING = 1 << 20 };
typedef struct json_text {
    const char *text, *name; /* name: of the file, for messages */
    size_t      n, at;
    char       *string;      /* the last string, unescaped, with a 0 behind it; json_free frees it */
    size_t      nstring, room;
} json_text;
static inline void json_free(json_text *j) { free(j->string); }
static inline bool json_wrong(const json_text *j, size_t at, const char *what)
{
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at && i < j->n; i++) column = j->text[i] == '\n' ? (line++, 1) : column + 1;
    dt_fail(DT_ERR_FILE, "%.200s: line %zu, column %zu: %s", j->name, line, column, what);
    return false;
}
static inline void json_blank(json_text *j)
{
    while (j->at < j->n && strchr(" \t\r\n", j->text[j->at]) && j->text[j->at]) j->at++;
}
/* Goes over c if it is next. */
static inline bool json_next(json_text *j, char c)
{
    json_blank(j);
    if (j->at >= j->n || j->text[j->at] != c) return false;
    j->at++;
    return true;
}
static inline bool json_expect(json_text *j, char c)
{
    char what[64];
    if (json_next(j, c)) return true;
    snprintf(what, sizeof what, j->at < j->n ? "expected '%c'" : "the text ends where '%c' was expected", c);
    return json_wrong(j, j->at, what);
}
/* The length of the UTF-8 character at s, at most n bytes; 0: it is none. If bad: how many bytes one U+FFFD stands for. */
static inline size_t json__character(const unsigned char *s, size_t n, uint32_t *code, size_t *bad)
{
    size_t   need = s[0] < 0x80                   ? 0
                    : s[0] >= 0xc2 && s[0] < 0xe0 ? 1
                    : s[0] >= 0xe0 && s[0] < 0xf0 ? 2
                    : s[0] >= 0xf0 && s[0] < 0xf5 ? 3
                                                  : 9;
    unsigned low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80, high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
    uint32_t c = need == 0 ? s[0] : s[0] & (0x3fu >> need);
    *bad = 1;
    if (need == 9) return 0;
    for (size_t i = 1; i <= need; i++, low = 0x80, high = 0xbf) {
        if (i >= n || s[i] < low || s[i] > high) return 0;
        *bad = i + 1;
        c = c << 6 | (s[i] & 0x3f);
    }
    *code = c;
    return need + 1;
}
static inline size_t json__put(uint32_t c, char out[4])
{
    if (c < 0x80) return out[0] = (char)c, 1;
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
    return n;
}
static inline bool json__hex(json_text *j, uint32_t *c)
{
    *c = 0;
    for (int i = 0; i < 4; i++, j->at++) {
        const char *digits = "0123456789abcdef", *d = NULL;
        if (j->at < j->n)
            d = strchr(digits, j->text[j->at] >= 'A' && j->text[j->at] <= 'F' ? j->text[j->at] + 32 : j->text[j->at]);
        if (!d || !*d) return json_wrong(j, j->at, "\\u needs four hexadecimal digits");
        *c = *c << 4 | (uint32_t)(d - digits);
    }
    return true;
}
static inline bool json_string(json_text *j)
{
    static const char escapes[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    size_t            begin;
    if (!json_expect(j, '"')) return false;
    begin = j->at - 1;
    for (j->nstring = 0;;) {
        uint32_t c = 0, low;
        size_t   bad, n;
        char     four[4];
        if (j->at >= j->n) return json_wrong(j, begin, "this string has no end");
        if (j->text[j->at] == '"') break;
        n = json__character((const unsigned char *)j->text + j->at, j->n - j->at, &c, &bad);
        if (!n) return json_wrong(j, j->at, "this is not UTF-8");
        if (c < 0x20) return json_wrong(j, j->at, "a control character in a string");
        j->at += n;
        if (c == '\\') {
            const char *e = j->at < j->n ? strchr(escapes, j->text[j->at]) : NULL;
            bool        u = j->at < j->n && j->text[j->at] == 'u';
            if (!u && (!e || !*e)) return json_wrong(j, j->at, "unknown escape");
            j->at++;
            c = u ? 0 : (uint32_t)(unsigned char)meant[e - escapes];
            if (u && !json__hex(j, &c)) return false;
            if (c >= 0xd800 && c < 0xe000) { /* half of a character: the other half must follow */
                bool pair = c < 0xdc00 && j->n - j->at >= 2 && j->text[j->at] == '\\' && j->text[j->at + 1] == 'u';
                j->at += pair ? 2 : 0;
                if (pair && !json__hex(j, &low)) return false;
                if (!pair || low < 0xdc00 || low >= 0xe000) return json_wrong(j, j->at, "half of a surrogate pair");
                c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
            }
        }
        n = json__put(c, four);
        if (j->nstring + n + 1 > j->room) {
            size_t room = j->room ? 2 * j->room : 256;
            char  *p = room <= JSON_STRING ? (char *)realloc(j->string, room) : NULL;
            if (!p) return json_wrong(j, begin, "this string is too long");
            j->string = p, j->room = room;
        }
        memcpy(j->string + j->nstring, four, n);
        j->nstring += n;
    }
    if (!j->string && !(j->string = (char *)malloc(j->room = 256))) return json_wrong(j, begin, "out of memory");
    j->string[j->nstring] = 0;
    j->at++;
    return true;
}
static inline bool json__word(json_text *j, const char *word)
{
    size_t n = strlen(word);
    json_blank(j);
    if (j->n - j->at < n || memcmp(j->text + j->at, word, n) != 0) return false;
    j->at += n;
    return true;
}
static inline bool json_number(json_text *j, double *x)
{
    char   text[64];
    size_t n = 0;
    json_blank(j);
    while (n < sizeof text - 1 && j->at + n < j->n && strchr("+-.0123456789eE", j->text[j->at + n]) && j->text[j->at + n]) n++;
    memcpy(text, j->text + j->at, n);
    text[n] = 0;
    char *end = text;
    if (n && (text[0] == '-' || (text[0] >= '0' && text[0] <= '9'))) *x = strtod(text, &end);
    if (end == text || *end)
        return json_wrong(j, j->at, j->at < j->n ? "expected a value" : "the text ends where a value was expected");
    j->at += n;
    return true;
}
static inline bool json_skip(json_text *j, int depth)
{
    double x;
    json_blank(j);
    char open = j->at < j->n ? j->text[j->at] : 0, close = open == '{' ? '}' : ']';
    if (open == '"') return json_string(j);
    if (open != '{' && open != '[')
        return json__word(j, "true") || json__word(j, "false") || json__word(j, "null") || json_number(j, &x);
    if (depth >= JSON_DEPTH) return json_wrong(j, j->at, "nested too deeply");
    j->at++;
    if (json_next(j, close)) return true;
    do {
        if (open == '{' && (!json_string(j) || !json_expect(j, ':'))) return false;
        if (!json_skip(j, depth + 1)) return false;
    } while (json_next(j, ','));
    return json_expect(j, close);
}
/* Goes over the object at the cursor, and finds the values of n keys: places[i] is where each begins, 0: there is none. */
static inline bool json_members(json_text *j, const char *const *keys, size_t *places, int n)
{
    for (int i = 0; i < n; i++) places[i] = 0;
    if (!json_expect(j, '{')) return false;
    if (json_next(j, '}')) return true;
    do {
        json_blank(j);
        size_t key = j->at;
        if (!json_string(j) || !json_expect(j, ':')) return false;
        json_blank(j);
        for (int i = 0; i < n; i++)
            if (!strcmp(j->string, keys[i]) && strlen(keys[i]) == j->nstring) {
                if (places[i]) return json_wrong(j, key, "this key is there twice");
                places[i] = j->at;
            }
        if (!json_skip(j, 1)) return false;
    } while (json_next(j, ','));
    return json_expect(j, '}');
}
/* The value at a place of json_members */
static inline bool json_is(json_text *j, size_t place, const char *word)
{
    j->at = place;
    return place != 0 && json__word(j, word);
}
static inline bool json_string_at(json_text *j, size_t place)
{
    j->at = place;
    return place ? json_string(j) : json_wrong(j, j->n, "a string is missing");
}
/* The bytes of a file, with a 0 behind them; free() them */
static inline char *json_file(const char *path, size_t *n)
{
    FILE  *f = path ? fopen(path, "rb") : NULL;
    size_t room = 1 << 16;
    char  *text = f ? (char *)malloc(room) : NULL, *more = text;
    *n = 0;
    while (text && !feof(f) && !ferror(f)) {
        if (*n + 1 == room) {
            more = room < ((size_t)1 << 30) ? (char *)realloc(text, room *= 2) : NULL;
            if (!more) break;
            text = more;
        }
        *n += fread(text + *n, 1, room - 1 - *n, f);
    }
    if (!text || !more || ferror(f)) {
        dt_fail(DT_ERR_FILE, "%.400s: %s", path ? path : "(null)",
                !f      ? "this file cannot be opened"
                : !more ? "the file is too large"
                        : "it cannot be read");
        free(text);
        text = NULL;
    } else text[*n] = 0;
    if (f) fclose(f);
    return text;
}

/* ---------------------------------------------------------------------------------------------------- characters
   Ranges of \p{L}, \p{N} and \s as the pre-tokenizer has them, made by tests/golden/make_bpe.py. */
static const uint32_t bpe__letters[][2] = {
    { 0x41, 0x5a }, { 0x61, 0x7a }, { 0xaa, 0xaa }, { 0xb5, 0xb5 }, { 0xba, 0xba }, { 0xc0, 0xd6 }, { 0xd8, 0xf6 },
    { 0xf8, 0x2c1 }, { 0x2c6, 0x2d1 }, { 0x2e0, 0x2e4 }, { 0x2ec, 0x2ec }, { 0x2ee, 0x2ee }, { 0x370, 0x374 },
    { 0x376, 0x377 }, { 0x37a, 0x37d }, { 0x37f, 0x37f }, { 0x386, 0x386 }, { 0x388, 0x38a }, { 0x38c, 0x38c },
    { 0x38e, 0x3a1 }, { 0x3a3, 0x3f5 }, { 0x3f7, 0x481 }, { 0x48a, 0x52f }, { 0x531, 0x556 }, { 0x559, 0x559 },
    { 0x560, 0x588 }, { 0x5d0, 0x5ea }, { 0x5ef, 0x5f2 }, { 0x620, 0x64a }, { 0x66e, 0x66f }, { 0x671, 0x6d3 },
    { 0x6d5, 0x6d5 }, { 0x6e5, 0x6e6 }, { 0x6ee, 0x6ef }, { 0x6fa, 0x6fc }, { 0x6ff, 0x6ff }, { 0x710, 0x710 },
    { 0x712, 0x72f }, { 0x74d, 0x7a5 }, { 0x7b1, 0x7b1 }, { 0x7ca, 0x7ea }, { 0x7f4, 0x7f5 }, { 0x7fa, 0x7fa },
    { 0x800, 0x815 }, { 0x81a, 0x81a }, { 0x824, 0x824 }, { 0x828, 0x828 }, { 0x840, 0x858 }, { 0x860, 0x86a },
    { 0x870, 0x887 }, { 0x889, 0x88e }, { 0x8a0, 0x8c9 }, { 0x904, 0x939 }, { 0x93d, 0x93d }, { 0x950, 0x950 },
    { 0x958, 0x961 }, { 0x971, 0x980 }, { 0x985, 0x98c }, { 0x98f, 0x990 }, { 0x993, 0x9a8 }, { 0x9aa, 0x9b0 },
    { 0x9b2, 0x9b2 }, { 0x9b6, 0x9b9 }, { 0x9bd, 0x9bd }, { 0x9ce, 0x9ce }, { 0x9dc, 0x9dd }, { 0x9df, 0x9e1 },
    { 0x9f0, 0x9f1 }, { 0x9fc, 0x9fc }, { 0xa05, 0xa0a }, { 0xa0f, 0xa10 }, { 0xa13, 0xa28 }, { 0xa2a, 0xa30 },
    { 0xa32, 0xa33 }, { 0xa35, 0xa36 }, { 0xa38, 0xa39 }, { 0xa59, 0xa5c }, { 0xa5e, 0xa5e }, { 0xa72, 0xa74 },
    { 0xa85, 0xa8d }, { 0xa8f, 0xa91 }, { 0xa93, 0xaa8 }, { 0xaaa, 0xab0 }, { 0xab2, 0xab3 }, { 0xab5, 0xab9 },
    { 0xabd, 0xabd }, { 0xad0, 0xad0 }, { 0xae0, 0xae1 }, { 0xaf9, 0xaf9 }, { 0xb05, 0xb0c }, { 0xb0f, 0xb10 },
    { 0xb13, 0xb28 }, { 0xb2a, 0xb30 }, { 0xb32, 0xb33 }, { 0xb35, 0xb39 }, { 0xb3d, 0xb3d }, { 0xb5c, 0xb5d },
    { 0xb5f, 0xb61 }, { 0xb71, 0xb71 }, { 0xb83, 0xb83 }, { 0xb85, 0xb8a }, { 0xb8e, 0xb90 }, { 0xb92, 0xb95 },
    { 0xb99, 0xb9a }, { 0xb9c, 0xb9c }, { 0xb9e, 0xb9f }, { 0xba3, 0xba4 }, { 0xba8, 0xbaa }, { 0xbae, 0xbb9 },
    { 0xbd0, 0xbd0 }, { 0xc05, 0xc0c }, { 0xc0e, 0xc10 }, { 0xc12, 0xc28 }, { 0xc2a, 0xc39 }, { 0xc3d, 0xc3d },
    { 0xc58, 0xc5a }, { 0xc5d, 0xc5d }, { 0xc60, 0xc61 }, { 0xc80, 0xc80 }, { 0xc85, 0xc8c }, { 0xc8e, 0xc90 },
    { 0xc92, 0xca8 }, { 0xcaa, 0xcb3 }, { 0xcb5, 0xcb9 }, { 0xcbd, 0xcbd }, { 0xcdd, 0xcde }, { 0xce0, 0xce1 },
    { 0xcf1, 0xcf2 }, { 0xd04, 0xd0c }, { 0xd0e, 0xd10 }, { 0xd12, 0xd3a }, { 0xd3d, 0xd3d }, { 0xd4e, 0xd4e },
    { 0xd54, 0xd56 }, { 0xd5f, 0xd61 }, { 0xd7a, 0xd7f }, { 0xd85, 0xd96 }, { 0xd9a, 0xdb1 }, { 0xdb3, 0xdbb },
    { 0xdbd, 0xdbd }, { 0xdc0, 0xdc6 }, { 0xe01, 0xe30 }, { 0xe32, 0xe33 }, { 0xe40, 0xe46 }, { 0xe81, 0xe82 },
    { 0xe84, 0xe84 }, { 0xe86, 0xe8a }, { 0xe8c, 0xea3 }, { 0xea5, 0xea5 }, { 0xea7, 0xeb0 }, { 0xeb2, 0xeb3 },
    { 0xebd, 0xebd }, { 0xec0, 0xec4 }, { 0xec6, 0xec6 }, { 0xedc, 0xedf }, { 0xf00, 0xf00 }, { 0xf40, 0xf47 },
    { 0xf49, 0xf6c }, { 0xf88, 0xf8c }, { 0x1000, 0x102a }, { 0x103f, 0x103f }, { 0x1050, 0x1055 }, { 0x105a, 0x105d },
    { 0x1061, 0x1061 }, { 0x1065, 0x1066 }, { 0x106e, 0x1070 }, { 0x1075, 0x1081 }, { 0x108e, 0x108e }, { 0x10a0, 0x10c5 },
    { 0x10c7, 0x10c7 }, { 0x10cd, 0x10cd }, { 0x10d0, 0x10fa }, { 0x10fc, 0x1248 }, { 0x124a, 0x124d }, { 0x1250, 0x1256 },
    { 0x1258, 0x1258 }, { 0x125a, 0x125d }, { 0x1260, 0x1288 }, { 0x128a, 0x128d }, { 0x1290, 0x12b0 }, { 0x12b2, 0x12b5 },
    { 0x12b8, 0x12be }, { 0x12c0, 0x12c0 }, { 0x12c2, 0x12c5 }, { 0x12c8, 0x12d6 }, { 0x12d8, 0x1310 }, { 0x1312, 0x1315 },
    { 0x1318, 0x135a }, { 0x1380, 0x138f }, { 0x13a0, 0x13f5 }, { 0x13f8, 0x13fd }, { 0x1401, 0x166c }, { 0x166f, 0x167f },
    { 0x1681, 0x169a }, { 0x16a0, 0x16ea }, { 0x16f1, 0x16f8 }, { 0x1700, 0x1711 }, { 0x171f, 0x1731 }, { 0x1740, 0x1751 },
    { 0x1760, 0x176c }, { 0x176e, 0x1770 }, { 0x1780, 0x17b3 }, { 0x17d7, 0x17d7 }, { 0x17dc, 0x17dc }, { 0x1820, 0x1878 },
    { 0x1880, 0x1884 }, { 0x1887, 0x18a8 }, { 0x18aa, 0x18aa }, { 0x18b0, 0x18f5 }, { 0x1900, 0x191e }, { 0x1950, 0x196d },
    { 0x1970, 0x1974 }, { 0x1980, 0x19ab }, { 0x19b0, 0x19c9 }, { 0x1a00, 0x1a16 }, { 0x1a20, 0x1a54 }, { 0x1aa7, 0x1aa7 },
    { 0x1b05, 0x1b33 }, { 0x1b45, 0x1b4c }, { 0x1b83, 0x1ba0 }, { 0x1bae, 0x1baf }, { 0x1bba, 0x1be5 }, { 0x1c00, 0x1c23 },
    { 0x1c4d, 0x1c4f }, { 0x1c5a, 0x1c7d }, { 0x1c80, 0x1c8a }, { 0x1c90, 0x1cba }, { 0x1cbd, 0x1cbf }, { 0x1ce9, 0x1cec },
    { 0x1cee, 0x1cf3 }, { 0x1cf5, 0x1cf6 }, { 0x1cfa, 0x1cfa }, { 0x1d00, 0x1dbf }, { 0x1e00, 0x1f15 }, { 0x1f18, 0x1f1d },
    { 0x1f20, 0x1f45 }, { 0x1f48, 0x1f4d }, { 0x1f50, 0x1f57 }, { 0x1f59, 0x1f59 }, { 0x1f5b, 0x1f5b }, { 0x1f5d, 0x1f5d },
    { 0x1f5f, 0x1f7d }, { 0x1f80, 0x1fb4 }, { 0x1fb6, 0x1fbc }, { 0x1fbe, 0x1fbe }, { 0x1fc2, 0x1fc4 }, { 0x1fc6, 0x1fcc },
    { 0x1fd0, 0x1fd3 }, { 0x1fd6, 0x1fdb }, { 0x1fe0, 0x1fec }, { 0x1ff2, 0x1ff4 }, { 0x1ff6, 0x1ffc }, { 0x2071, 0x2071 },
    { 0x207f, 0x207f }, { 0x2090, 0x209c }, { 0x2102, 0x2102 }, { 0x2107, 0x2107 }, { 0x210a, 0x2113 }, { 0x2115, 0x2115 },
    { 0x2119, 0x211d }, { 0x2124, 0x2124 }, { 0x2126, 0x2126 }, { 0x2128, 0x2128 }, { 0x212a, 0x212d }, { 0x212f, 0x2139 },
    { 0x213c, 0x213f }, { 0x2145, 0x2149 }, { 0x214e, 0x214e }, { 0x2183, 0x2184 }, { 0x2c00, 0x2ce4 }, { 0x2ceb, 0x2cee },
    { 0x2cf2, 0x2cf3 }, { 0x2d00, 0x2d25 }, { 0x2d27, 0x2d27 }, { 0x2d2d, 0x2d2d }, { 0x2d30, 0x2d67 }, { 0x2d6f, 0x2d6f },
    { 0x2d80, 0x2d96 }, { 0x2da0, 0x2da6 }, { 0x2da8, 0x2dae }, { 0x2db0, 0x2db6 }, { 0x2db8, 0x2dbe }, { 0x2dc0, 0x2dc6 },
    { 0x2dc8, 0x2dce }, { 0x2dd0, 0x2dd6 }, { 0x2dd8, 0x2dde }, { 0x2e2f, 0x2e2f }, { 0x3005, 0x3006 }, { 0x3031, 0x3035 },
    { 0x303b, 0x303c }, { 0x3041, 0x3096 }, { 0x309d, 0x309f }, { 0x30a1, 0x30fa }, { 0x30fc, 0x30ff }, { 0x3105, 0x312f },
    { 0x3131, 0x318e }, { 0x31a0, 0x31bf }, { 0x31f0, 0x31ff }, { 0x3400, 0x4dbf }, { 0x4e00, 0xa48c }, { 0xa4d0, 0xa4fd },
    { 0xa500, 0xa60c }, { 0xa610, 0xa61f }, { 0xa62a, 0xa62b }, { 0xa640, 0xa66e }, { 0xa67f, 0xa69d }, { 0xa6a0, 0xa6e5 },
    { 0xa717, 0xa71f }, { 0xa722, 0xa788 }, { 0xa78b, 0xa7cd }, { 0xa7d0, 0xa7d1 }, { 0xa7d3, 0xa7d3 }, { 0xa7d5, 0xa7dc },
    { 0xa7f2, 0xa801 }, { 0xa803, 0xa805 }, { 0xa807, 0xa80a }, { 0xa80c, 0xa822 }, { 0xa840, 0xa873 }, { 0xa882, 0xa8b3 },
    { 0xa8f2, 0xa8f7 }, { 0xa8fb, 0xa8fb }, { 0xa8fd, 0xa8fe }, { 0xa90a, 0xa925 }, { 0xa930, 0xa946 }, { 0xa960, 0xa97c },
    { 0xa984, 0xa9b2 }, { 0xa9cf, 0xa9cf }, { 0xa9e0, 0xa9e4 }, { 0xa9e6, 0xa9ef }, { 0xa9fa, 0xa9fe }, { 0xaa00, 0xaa28 },
    { 0xaa40, 0xaa42 }, { 0xaa44, 0xaa4b }, { 0xaa60, 0xaa76 }, { 0xaa7a, 0xaa7a }, { 0xaa7e, 0xaaaf }, { 0xaab1, 0xaab1 },
    { 0xaab5, 0xaab6 }, { 0xaab9, 0xaabd }, { 0xaac0, 0xaac0 }, { 0xaac2, 0xaac2 }, { 0xaadb, 0xaadd }, { 0xaae0, 0xaaea },
    { 0xaaf2, 0xaaf4 }, { 0xab01, 0xab06 }, { 0xab09, 0xab0e }, { 0xab11, 0xab16 }, { 0xab20, 0xab26 }, { 0xab28, 0xab2e },
    { 0xab30, 0xab5a }, { 0xab5c, 0xab69 }, { 0xab70, 0xabe2 }, { 0xac00, 0xd7a3 }, { 0xd7b0, 0xd7c6 }, { 0xd7cb, 0xd7fb },
    { 0xf900, 0xfa6d }, { 0xfa70, 0xfad9 }, { 0xfb00, 0xfb06 }, { 0xfb13, 0xfb17 }, { 0xfb1d, 0xfb1d }, { 0xfb1f, 0xfb28 },
    { 0xfb2a, 0xfb36 }, { 0xfb38, 0xfb3c }, { 0xfb3e, 0xfb3e }, { 0xfb40, 0xfb41 }, { 0xfb43, 0xfb44 }, { 0xfb46, 0xfbb1 },
    { 0xfbd3, 0xfd3d }, { 0xfd50, 0xfd8f }, { 0xfd92, 0xfdc7 }, { 0xfdf0, 0xfdfb }, { 0xfe70, 0xfe74 }, { 0xfe76, 0xfefc },
    { 0xff21, 0xff3a }, { 0xff41, 0xff5a }, { 0xff66, 0xffbe }, { 0xffc2, 0xffc7 }, { 0xffca, 0xffcf }, { 0xffd2, 0xffd7 },
    { 0xffda, 0xffdc }, { 0x10000, 0x1000b }, { 0x1000d, 0x10026 }, { 0x10028, 0x1003a }, { 0x1003c, 0x1003d },
    { 0x1003f, 0x1004d }, { 0x10050, 0x1005d }, { 0x10080, 0x100fa }, { 0x10280, 0x1029c }, { 0x102a0, 0x102d0 },
    { 0x10300, 0x1031f }, { 0x1032d, 0x10340 }, { 0x10342, 0x10349 }, { 0x10350, 0x10375 }, { 0x10380, 0x1039d },
    { 0x103a0, 0x103c3 }, { 0x103c8, 0x103cf }, { 0x10400, 0x1049d }, { 0x104b0, 0x104d3 }, { 0x104d8, 0x104fb },
    { 0x10500, 0x10527 }, { 0x10530, 0x10563 }, { 0x10570, 0x1057a }, { 0x1057c, 0x1058a }, { 0x1058c, 0x10592 },
    { 0x10594, 0x10595 }, { 0x10597, 0x105a1 }, { 0x105a3, 0x105b1 }, { 0x105b3, 0x105b9 }, { 0x105bb, 0x105bc },
    { 0x105c0, 0x105f3 }, { 0x10600, 0x10736 }, { 0x10740, 0x10755 }, { 0x10760, 0x10767 }, { 0x10780, 0x10785 },
    { 0x10787, 0x107b0 }, { 0x107b2, 0x107ba }, { 0x10800, 0x10805 }, { 0x10808, 0x10808 }, { 0x1080a, 0x10835 },
    { 0x10837, 0x10838 }, { 0x1083c, 0x1083c }, { 0x1083f, 0x10855 }, { 0x10860, 0x10876 }, { 0x10880, 0x1089e },
    { 0x108e0, 0x108f2 }, { 0x108f4, 0x108f5 }, { 0x10900, 0x10915 }, { 0x10920, 0x10939 }, { 0x10980, 0x109b7 },
    { 0x109be, 0x109bf }, { 0x10a00, 0x10a00 }, { 0x10a10, 0x10a13 }, { 0x10a15, 0x10a17 }, { 0x10a19, 0x10a35 },
    { 0x10a60, 0x10a7c }, { 0x10a80, 0x10a9c }, { 0x10ac0, 0x10ac7 }, { 0x10ac9, 0x10ae4 }, { 0x10b00, 0x10b35 },
    { 0x10b40, 0x10b55 }, { 0x10b60, 0x10b72 }, { 0x10b80, 0x10b91 }, { 0x10c00, 0x10c48 }, { 0x10c80, 0x10cb2 },
    { 0x10cc0, 0x10cf2 }, { 0x10d00, 0x10d23 }, { 0x10d4a, 0x10d65 }, { 0x10d6f, 0x10d85 }, { 0x10e80, 0x10ea9 },
    { 0x10eb0, 0x10eb1 }, { 0x10ec2, 0x10ec4 }, { 0x10f00, 0x10f1c }, { 0x10f27, 0x10f27 }, { 0x10f30, 0x10f45 },
    { 0x10f70, 0x10f81 }, { 0x10fb0, 0x10fc4 }, { 0x10fe0, 0x10ff6 }, { 0x11003, 0x11037 }, { 0x11071, 0x11072 },
    { 0x11075, 0x11075 }, { 0x11083, 0x110af }, { 0x110d0, 0x110e8 }, { 0x11103, 0x11126 }, { 0x11144, 0x11144 },
    { 0x11147, 0x11147 }, { 0x11150, 0x11172 }, { 0x11176, 0x11176 }, { 0x11183, 0x111b2 }, { 0x111c1, 0x111c4 },
    { 0x111da, 0x111da }, { 0x111dc, 0x111dc }, { 0x11200, 0x11211 }, { 0x11213, 0x1122b }, { 0x1123f, 0x11240 },
    { 0x11280, 0x11286 }, { 0x11288, 0x11288 }, { 0x1128a, 0x1128d }, { 0x1128f, 0x1129d }, { 0x1129f, 0x112a8 },
    { 0x112b0, 0x112de }, { 0x11305, 0x1130c }, { 0x1130f, 0x11310 }, { 0x11313, 0x11328 }, { 0x1132a, 0x11330 },
    { 0x11332, 0x11333 }, { 0x11335, 0x11339 }, { 0x1133d, 0x1133d }, { 0x11350, 0x11350 }, { 0x1135d, 0x11361 },
    { 0x11380, 0x11389 }, { 0x1138b, 0x1138b }, { 0x1138e, 0x1138e }, { 0x11390, 0x113b5 }, { 0x113b7, 0x113b7 },
    { 0x113d1, 0x113d1 }, { 0x113d3, 0x113d3 }, { 0x11400, 0x11434 }, { 0x11447, 0x1144a }, { 0x1145f, 0x11461 },
    { 0x11480, 0x114af }, { 0x114c4, 0x114c5 }, { 0x114c7, 0x114c7 }, { 0x11580, 0x115ae }, { 0x115d8, 0x115db },
    { 0x11600, 0x1162f }, { 0x11644, 0x11644 }, { 0x11680, 0x116aa }, { 0x116b8, 0x116b8 }, { 0x11700, 0x1171a },
    { 0x11740, 0x11746 }, { 0x11800, 0x1182b }, { 0x118a0, 0x118df }, { 0x118ff, 0x11906 }, { 0x11909, 0x11909 },
    { 0x1190c, 0x11913 }, { 0x11915, 0x11916 }, { 0x11918, 0x1192f }, { 0x1193f, 0x1193f }, { 0x11941, 0x11941 },
    { 0x119a0, 0x119a7 }, { 0x119aa, 0x119d0 }, { 0x119e1, 0x119e1 }, { 0x119e3, 0x119e3 }, { 0x11a00, 0x11a00 },
    { 0x11a0b, 0x11a32 }, { 0x11a3a, 0x11a3a }, { 0x11a50, 0x11a50 }, { 0x11a5c, 0x11a89 }, { 0x11a9d, 0x11a9d },
    { 0x11ab0, 0x11af8 }, { 0x11bc0, 0x11be0 }, { 0x11c00, 0x11c08 }, { 0x11c0a, 0x11c2e }, { 0x11c40, 0x11c40 },
    { 0x11c72, 0x11c8f }, { 0x11d00, 0x11d06 }, { 0x11d08, 0x11d09 }, { 0x11d0b, 0x11d30 }, { 0x11d46, 0x11d46 },
    { 0x11d60, 0x11d65 }, { 0x11d67, 0x11d68 }, { 0x11d6a, 0x11d89 }, { 0x11d98, 0x11d98 }, { 0x11ee0, 0x11ef2 },
    { 0x11f02, 0x11f02 }, { 0x11f04, 0x11f10 }, { 0x11f12, 0x11f33 }, { 0x11fb0, 0x11fb0 }, { 0x12000, 0x12399 },
    { 0x12480, 0x12543 }, { 0x12f90, 0x12ff0 }, { 0x13000, 0x1342f }, { 0x13441, 0x13446 }, { 0x13460, 0x143fa },
    { 0x14400, 0x14646 }, { 0x16100, 0x1611d }, { 0x16800, 0x16a38 }, { 0x16a40, 0x16a5e }, { 0x16a70, 0x16abe },
    { 0x16ad0, 0x16aed }, { 0x16b00, 0x16b2f }, { 0x16b40, 0x16b43 }, { 0x16b63, 0x16b77 }, { 0x16b7d, 0x16b8f },
    { 0x16d40, 0x16d6c }, { 0x16e40, 0x16e7f }, { 0x16f00, 0x16f4a }, { 0x16f50, 0x16f50 }, { 0x16f93, 0x16f9f },
    { 0x16fe0, 0x16fe1 }, { 0x16fe3, 0x16fe3 }, { 0x17000, 0x187f7 }, { 0x18800, 0x18cd5 }, { 0x18cff, 0x18d08 },
    { 0x1aff0, 0x1aff3 }, { 0x1aff5, 0x1affb }, { 0x1affd, 0x1affe }, { 0x1b000, 0x1b122 }, { 0x1b132, 0x1b132 },
    { 0x1b150, 0x1b152 }, { 0x1b155, 0x1b155 }, { 0x1b164, 0x1b167 }, { 0x1b170, 0x1b2fb }, { 0x1bc00, 0x1bc6a },
    { 0x1bc70, 0x1bc7c }, { 0x1bc80, 0x1bc88 }, { 0x1bc90, 0x1bc99 }, { 0x1d400, 0x1d454 }, { 0x1d456, 0x1d49c },
    { 0x1d49e, 0x1d49f }, { 0x1d4a2, 0x1d4a2 }, { 0x1d4a5, 0x1d4a6 }, { 0x1d4a9, 0x1d4ac }, { 0x1d4ae, 0x1d4b9 },
    { 0x1d4bb, 0x1d4bb }, { 0x1d4bd, 0x1d4c3 }, { 0x1d4c5, 0x1d505 }, { 0x1d507, 0x1d50a }, { 0x1d50d, 0x1d514 },
    { 0x1d516, 0x1d51c }, { 0x1d51e, 0x1d539 }, { 0x1d53b, 0x1d53e }, { 0x1d540, 0x1d544 }, { 0x1d546, 0x1d546 },
    { 0x1d54a, 0x1d550 }, { 0x1d552, 0x1d6a5 }, { 0x1d6a8, 0x1d6c0 }, { 0x1d6c2, 0x1d6da }, { 0x1d6dc, 0x1d6fa },
    { 0x1d6fc, 0x1d714 }, { 0x1d716, 0x1d734 }, { 0x1d736, 0x1d74e }, { 0x1d750, 0x1d76e }, { 0x1d770, 0x1d788 },
    { 0x1d78a, 0x1d7a8 }, { 0x1d7aa, 0x1d7c2 }, { 0x1d7c4, 0x1d7cb }, { 0x1df00, 0x1df1e }, { 0x1df25, 0x1df2a },
    { 0x1e030, 0x1e06d }, { 0x1e100, 0x1e12c }, { 0x1e137, 0x1e13d }, { 0x1e14e, 0x1e14e }, { 0x1e290, 0x1e2ad },
    { 0x1e2c0, 0x1e2eb }, { 0x1e4d0, 0x1e4eb }, { 0x1e5d0, 0x1e5ed }, { 0x1e5f0, 0x1e5f0 }, { 0x1e7e0, 0x1e7e6 },
    { 0x1e7e8, 0x1e7eb }, { 0x1e7ed, 0x1e7ee }, { 0x1e7f0, 0x1e7fe }, { 0x1e800, 0x1e8c4 }, { 0x1e900, 0x1e943 },
    { 0x1e94b, 0x1e94b }, { 0x1ee00, 0x1ee03 }, { 0x1ee05, 0x1ee1f }, { 0x1ee21, 0x1ee22 }, { 0x1ee24, 0x1ee24 },
    { 0x1ee27, 0x1ee27 }, { 0x1ee29, 0x1ee32 }, { 0x1ee34, 0x1ee37 }, { 0x1ee39, 0x1ee39 }, { 0x1ee3b, 0x1ee3b },
    { 0x1ee42, 0x1ee42 }, { 0x1ee47, 0x1ee47 }, { 0x1ee49, 0x1ee49 }, { 0x1ee4b, 0x1ee4b }, { 0x1ee4d, 0x1ee4f },
    { 0x1ee51, 0x1ee52 }, { 0x1ee54, 0x1ee54 }, { 0x1ee57, 0x1ee57 }, { 0x1ee59, 0x1ee59 }, { 0x1ee5b, 0x1ee5b },
    { 0x1ee5d, 0x1ee5d }, { 0x1ee5f, 0x1ee5f }, { 0x1ee61, 0x1ee62 }, { 0x1ee64, 0x1ee64 }, { 0x1ee67, 0x1ee6a },
    { 0x1ee6c, 0x1ee72 }, { 0x1ee74, 0x1ee77 }, { 0x1ee79, 0x1ee7c }, { 0x1ee7e, 0x1ee7e }, { 0x1ee80, 0x1ee89 },
    { 0x1ee8b, 0x1ee9b }, { 0x1eea1, 0x1eea3 }, { 0x1eea5, 0x1eea9 }, { 0x1eeab, 0x1eebb }, { 0x20000, 0x2a6df },
    { 0x2a700, 0x2b739 }, { 0x2b740, 0x2b81d }, { 0x2b820, 0x2cea1 }, { 0x2ceb0, 0x2ebe0 }, { 0x2ebf0, 0x2ee5d },
    { 0x2f800, 0x2fa1d }, { 0x30000, 0x3134a }, { 0x31350, 0x323af },
};
static const uint32_t bpe__numbers[][2] = {
    { 0x30, 0x39 }, { 0xb2, 0xb3 }, { 0xb9, 0xb9 }, { 0xbc, 0xbe }, { 0x660, 0x669 }, { 0x6f0, 0x6f9 }, { 0x7c0, 0x7c9 },
    { 0x966, 0x96f }, { 0x9e6, 0x9ef }, { 0x9f4, 0x9f9 }, { 0xa66, 0xa6f }, { 0xae6, 0xaef }, { 0xb66, 0xb6f },
    { 0xb72, 0xb77 }, { 0xbe6, 0xbf2 }, { 0xc66, 0xc6f }, { 0xc78, 0xc7e }, { 0xce6, 0xcef }, { 0xd58, 0xd5e },
    { 0xd66, 0xd78 }, { 0xde6, 0xdef }, { 0xe50, 0xe59 }, { 0xed0, 0xed9 }, { 0xf20, 0xf33 }, { 0x1040, 0x1049 },
    { 0x1090, 0x1099 }, { 0x1369, 0x137c }, { 0x16ee, 0x16f0 }, { 0x17e0, 0x17e9 }, { 0x17f0, 0x17f9 }, { 0x1810, 0x1819 },
    { 0x1946, 0x194f }, { 0x19d0, 0x19da }, { 0x1a80, 0x1a89 }, { 0x1a90, 0x1a99 }, { 0x1b50, 0x1b59 }, { 0x1bb0, 0x1bb9 },
    { 0x1c40, 0x1c49 }, { 0x1c50, 0x1c59 }, { 0x2070, 0x2070 }, { 0x2074, 0x2079 }, { 0x2080, 0x2089 }, { 0x2150, 0x2182 },
    { 0x2185, 0x2189 }, { 0x2460, 0x249b }, { 0x24ea, 0x24ff }, { 0x2776, 0x2793 }, { 0x2cfd, 0x2cfd }, { 0x3007, 0x3007 },
    { 0x3021, 0x3029 }, { 0x3038, 0x303a }, { 0x3192, 0x3195 }, { 0x3220, 0x3229 }, { 0x3248, 0x324f }, { 0x3251, 0x325f },
    { 0x3280, 0x3289 }, { 0x32b1, 0x32bf }, { 0xa620, 0xa629 }, { 0xa6e6, 0xa6ef }, { 0xa830, 0xa835 }, { 0xa8d0, 0xa8d9 },
    { 0xa900, 0xa909 }, { 0xa9d0, 0xa9d9 }, { 0xa9f0, 0xa9f9 }, { 0xaa50, 0xaa59 }, { 0xabf0, 0xabf9 }, { 0xff10, 0xff19 },
    { 0x10107, 0x10133 }, { 0x10140, 0x10178 }, { 0x1018a, 0x1018b }, { 0x102e1, 0x102fb }, { 0x10320, 0x10323 },
    { 0x10341, 0x10341 }, { 0x1034a, 0x1034a }, { 0x103d1, 0x103d5 }, { 0x104a0, 0x104a9 }, { 0x10858, 0x1085f },
    { 0x10879, 0x1087f }, { 0x108a7, 0x108af }, { 0x108fb, 0x108ff }, { 0x10916, 0x1091b }, { 0x109bc, 0x109bd },
    { 0x109c0, 0x109cf }, { 0x109d2, 0x109ff }, { 0x10a40, 0x10a48 }, { 0x10a7d, 0x10a7e }, { 0x10a9d, 0x10a9f },
    { 0x10aeb, 0x10aef }, { 0x10b58, 0x10b5f }, { 0x10b78, 0x10b7f }, { 0x10ba9, 0x10baf }, { 0x10cfa, 0x10cff },
    { 0x10d30, 0x10d39 }, { 0x10d40, 0x10d49 }, { 0x10e60, 0x10e7e }, { 0x10f1d, 0x10f26 }, { 0x10f51, 0x10f54 },
    { 0x10fc5, 0x10fcb }, { 0x11052, 0x1106f }, { 0x110f0, 0x110f9 }, { 0x11136, 0x1113f }, { 0x111d0, 0x111d9 },
    { 0x111e1, 0x111f4 }, { 0x112f0, 0x112f9 }, { 0x11450, 0x11459 }, { 0x114d0, 0x114d9 }, { 0x11650, 0x11659 },
    { 0x116c0, 0x116c9 }, { 0x116d0, 0x116e3 }, { 0x11730, 0x1173b }, { 0x118e0, 0x118f2 }, { 0x11950, 0x11959 },
    { 0x11bf0, 0x11bf9 }, { 0x11c50, 0x11c6c }, { 0x11d50, 0x11d59 }, { 0x11da0, 0x11da9 }, { 0x11f50, 0x11f59 },
    { 0x11fc0, 0x11fd4 }, { 0x12400, 0x1246e }, { 0x16130, 0x16139 }, { 0x16a60, 0x16a69 }, { 0x16ac0, 0x16ac9 },
    { 0x16b50, 0x16b59 }, { 0x16b5b, 0x16b61 }, { 0x16d70, 0x16d79 }, { 0x16e80, 0x16e96 }, { 0x1ccf0, 0x1ccf9 },
    { 0x1d2c0, 0x1d2d3 }, { 0x1d2e0, 0x1d2f3 }, { 0x1d360, 0x1d378 }, { 0x1d7ce, 0x1d7ff }, { 0x1e140, 0x1e149 },
    { 0x1e2f0, 0x1e2f9 }, { 0x1e4f0, 0x1e4f9 }, { 0x1e5f1, 0x1e5fa }, { 0x1e8c7, 0x1e8cf }, { 0x1e950, 0x1e959 },
    { 0x1ec71, 0x1ecab }, { 0x1ecad, 0x1ecaf }, { 0x1ecb1, 0x1ecb4 }, { 0x1ed01, 0x1ed2d }, { 0x1ed2f, 0x1ed3d },
    { 0x1f100, 0x1f10c }, { 0x1fbf0, 0x1fbf9 },
};
static const uint32_t bpe__spaces[][2] = {
    { 0x9, 0xd }, { 0x20, 0x20 }, { 0x85, 0x85 }, { 0xa0, 0xa0 }, { 0x1680, 0x1680 }, { 0x2000, 0x200a }, { 0x2028, 0x2029 },
    { 0x202f, 0x202f }, { 0x205f, 0x205f }, { 0x3000, 0x3000 },
};

#define BPE__IN(table, c) bpe__in(table, sizeof(table) / sizeof *(table), c)
static inline bool bpe__in(const uint32_t table[][2], size_t n, uint32_t c)
{
    size_t low = 0;
    while (n > 0) { /* the last range that begins at c or before */
        size_t half = n / 2;
        if (table[low + half][0] <= c) low += half + 1, n -= half + 1;
        else n = half;
    }
    return low > 0 && c <= table[low - 1][1];
}
enum { BPE__END, BPE__SPACE, BPE__LETTER, BPE__NUMBER, BPE__OTHER };
static inline int bpe__kind(uint32_t c)
{
    return BPE__IN(bpe__letters, c)   ? BPE__LETTER
           : BPE__IN(bpe__numbers, c) ? BPE__NUMBER
           : BPE__IN(bpe__spaces, c)  ? BPE__SPACE
                                      : BPE__OTHER;
}
static inline int bpe__kind_at(const char *s, size_t n, size_t at, size_t *length)
{
    uint32_t c = 0;
    size_t   bad;
    if (at >= n) return *length = 0, BPE__END;
    *length = json__character((const unsigned char *)s + at, n - at, &c, &bad);
    if (!*length) return *length = bad, BPE__OTHER; /* does not happen after bpe_repair */
    return bpe__kind(c);
}
static inline size_t bpe__run(const char *s, size_t n, size_t at, int kind)
{
    size_t k;
    while (bpe__kind_at(s, n, at, &k) == kind) at += k;
    return at;
}
/* The end of the word that begins at `at`: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static inline size_t bpe__word(const char *s, size_t n, size_t at)
{
    static const char *const short_forms[] = { "'s", "'t", "'re", "'ve", "'m", "'ll", "'d" };
    size_t                   k, from = at + (s[at] == ' ');
    for (int i = 0; i < 7; i++)
        if (n - at >= strlen(short_forms[i]) && !memcmp(s + at, short_forms[i], strlen(short_forms[i])))
            return at + strlen(short_forms[i]);
    int kind = bpe__kind_at(s, n, from, &k);
    if (kind == BPE__LETTER || kind == BPE__NUMBER || kind == BPE__OTHER) return bpe__run(s, n, from, kind);
    size_t end = at, last = at;
    while (bpe__kind_at(s, n, end, &k) == BPE__SPACE) last = end, end += k;
    return end < n && last > at ? last : end; /* before a word the last blank is the word's */
}

/* ---------------------------------------------------------------------------------------------------- the tokenizer */
typedef struct bpe__token {
    size_t text, ntext;   /* as written in the file: in `pool` */
    size_t bytes, nbytes; /* what it stands for */
    bool   there, added, special, left, right, normalized; /* left, right: it takes the blanks beside it */
} bpe__token;
typedef struct bpe__merge {
    int32_t left, right, rank, made; /* left -1: an empty slot */
} bpe__merge;
struct bpe {
    char       *pool;
    size_t      used, room;
    bpe__token *token;
    int64_t     ntokens, tokens_room;
    int32_t    *name;          /* hash table of the tokens by text; -1: an empty slot */
    size_t      names, named;  /* slots, a power of two; used ones */
    bpe__merge *merge;
    size_t      merges, merged;
    int32_t     byte[256];     /* the token of each byte; -1: it has none, and is left out */
    int32_t    *added;         /* the added tokens, in order of the file */
    int64_t     nadded;
    bool        prefix_space, words, ignore_merges; /* words: the pre-tokenizer cuts into words */
};
enum { BPE__MOST = 1 << 20 }; /* tokens, merges */

/* ByteLevel writes each byte as a character: printable ones as they are, the others from U+0100 on, in order. */
static inline uint32_t bpe__shown(int byte)
{
    int n = 0;
    if ((byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174) return (uint32_t)byte;
    for (int i = 0; i < byte; i++) n += !((i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174);
    return (uint32_t)(256 + n);
}
static inline int bpe__meant(uint32_t c)
{
    if (c < 256) return bpe__shown((int)c) == c ? (int)c : -1;
    for (int b = 0; b < 256; b++)
        if (bpe__shown(b) == c) return b;
    return -1;
}
static inline uint64_t bpe__hash(const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3ull;
    return h ^ h >> 32;
}
static inline uint64_t bpe__pair(int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}
static inline int32_t bpe__find(const bpe *b, const char *s, size_t n)
{
    for (size_t i = bpe__hash(s, n);; i++) {
        int32_t id = b->names ? b->name[i & (b->names - 1)] : -1;
        if (id < 0 || (b->token[id].ntext == n && !memcmp(b->pool + b->token[id].text, s, n))) return id;
    }
}
static inline const bpe__merge *bpe__merge_of(const bpe *b, int32_t left, int32_t right)
{
    if (!b->merges) return NULL;
    for (size_t i = bpe__pair(left, right);; i++) {
        const bpe__merge *e = &b->merge[i & (b->merges - 1)];
        if (e->left < 0) return NULL;
        if (e->left == left && e->right == right) return e;
    }
}
static inline bool bpe__grow_names(bpe *b)
{
    size_t   n = b->names ? 2 * b->names : 1024;
    int32_t *p = (int32_t *)malloc(n * sizeof *p);
    if (!p) return false;
    memset(p, 0xff, n * sizeof *p);
    for (size_t i = 0; i < b->names; i++) {
        if (b->name[i] < 0) continue;
        size_t at = bpe__hash(b->pool + b->token[b->name[i]].text, b->token[b->name[i]].ntext);
        while (p[at & (n - 1)] >= 0) at++;
        p[at & (n - 1)] = b->name[i];
    }
    free(b->name);
    b->name = p, b->names = n;
    return true;
}
static inline bool bpe__grow_merges(bpe *b)
{
    size_t      n = b->merges ? 2 * b->merges : 1024;
    bpe__merge *p = (bpe__merge *)malloc(n * sizeof *p);
    if (!p) return false;
    memset(p, 0xff, n * sizeof *p);
    for (size_t i = 0; i < b->merges; i++) {
        if (b->merge[i].left < 0) continue;
        size_t at = bpe__pair(b->merge[i].left, b->merge[i].right);
        while (p[at & (n - 1)].left >= 0) at++;
        p[at & (n - 1)] = b->merge[i];
    }
    free(b->merge);
    b->merge = p, b->merges = n;
    return true;
}
static inline bool bpe__store(bpe *b, const char *s, size_t n, size_t *at)
{
    if (b->room - b->used < n + 1) {
        size_t room = 2 * b->room + n + 4096;
        char  *p = (char *)realloc(b->pool, room);
        if (!p) return false;
        b->pool = p, b->room = room;
    }
    memcpy(b->pool + b->used, s, n);
    *at = b->used;
    b->used += n;
    b->pool[b->used++] = 0;
    return true;
}
/* The string of the cursor becomes token id. added: its text is what it stands for. Returns false after an error. */
static inline bool bpe__add_token(bpe *b, json_text *j, size_t at, double id, bool added)
{
    if (!(id >= 0 && id < (double)BPE__MOST) || id != (double)(int32_t)id)
        return json_wrong(j, at, "a token's number must be 0 to 1048575");
    int32_t k = (int32_t)id, old = bpe__find(b, j->string, j->nstring);
    if (old >= 0 && old != k) return json_wrong(j, at, "this token is there twice, with two numbers");
    if (k >= b->tokens_room) {
        int64_t     more = b->tokens_room + b->tokens_room / 2 + 1024, room = k < more ? more : (int64_t)k + 1;
        bpe__token *p = (bpe__token *)realloc(b->token, (size_t)room * sizeof *p);
        if (!p) return json_wrong(j, at, "out of memory");
        memset(p + b->tokens_room, 0, (size_t)(room - b->tokens_room) * sizeof *p);
        b->token = p, b->tokens_room = room;
    }
    bpe__token *t = &b->token[k];
    if (t->there && old != k) return json_wrong(j, at, "another token has this number");
    if (t->there) return added || json_wrong(j, at, "this token is there twice");
    if (2 * (b->named + 1) > b->names && !bpe__grow_names(b)) return json_wrong(j, at, "out of memory");
    t = &b->token[k];
    t->ntext = j->nstring;
    if (!bpe__store(b, j->string, j->nstring, &t->text)) return json_wrong(j, at, "out of memory");
    t->bytes = t->text, t->nbytes = t->ntext;
    t->there = true;
    if (k >= b->ntokens) b->ntokens = k + 1;
    size_t slot = bpe__hash(j->string, j->nstring);
    while (b->name[slot & (b->names - 1)] >= 0) slot++;
    b->name[slot & (b->names - 1)] = k;
    b->named++;
    /* back to bytes, unless a character stands for none: then its text is taken as it is */
    char   bytes[256];
    size_t n = 0, bad, i = 0, k2 = 0;
    for (uint32_t c = 0; i < j->nstring && n < sizeof bytes; i += k2, n++) {
        k2 = json__character((const unsigned char *)j->string + i, j->nstring - i, &c, &bad);
        int byte = k2 ? bpe__meant(c) : -1;
        if (byte < 0) return true;
        bytes[n] = (char)byte;
    }
    if (i < j->nstring) return json_wrong(j, at, "a token of more than 256 bytes");
    t->nbytes = n;
    return bpe__store(b, bytes, n, &t->bytes) || json_wrong(j, at, "out of memory");
}
static inline bool bpe__read_vocab(bpe *b, json_text *j)
{
    double id;
    if (!json_expect(j, '{')) return false;
    if (json_next(j, '}')) return true;
    do {
        json_blank(j);
        size_t at = j->at;
        if (!json_string(j) || !json_expect(j, ':') || !json_number(j, &id) || !bpe__add_token(b, j, at, id, false))
            return false;
    } while (json_next(j, ','));
    return json_expect(j, '}');
}
static inline bool bpe__add_merge(bpe *b, json_text *j, size_t at, const char *left, size_t nleft, const char *right,
                                  size_t nright, int64_t rank)
{
    char    both[1024];
    int32_t l = bpe__find(b, left, nleft), r = bpe__find(b, right, nright), made = -1;
    if (nleft + nright < sizeof both) {
        memcpy(both, left, nleft);
        memcpy(both + nleft, right, nright);
        made = bpe__find(b, both, nleft + nright);
    }
    if (l < 0 || r < 0 || made < 0) return json_wrong(j, at, "this merge has or makes a token that is not in the vocabulary");
    if (rank >= BPE__MOST || (2 * (b->merged + 1) > b->merges && !bpe__grow_merges(b)))
        return json_wrong(j, at, "out of memory");
    size_t slot = bpe__pair(l, r);
    for (; b->merge[slot & (b->merges - 1)].left >= 0; slot++) {
        const bpe__merge *e = &b->merge[slot & (b->merges - 1)];
        if (e->left == l && e->right == r) return json_wrong(j, at, "this merge is there twice");
    }
    bpe__merge *e = &b->merge[slot & (b->merges - 1)];
    e->left = l, e->right = r, e->rank = (int32_t)rank, e->made = made;
    b->merged++;
    return true;
}
static inline bool bpe__read_merges(bpe *b, json_text *j)
{
    if (!json_expect(j, '[')) return false;
    if (json_next(j, ']')) return true;
    int64_t rank = 0;
    do {
        json_blank(j);
        size_t at = j->at;
        if (json_next(j, '[')) { /* ["a", "b"] */
            char   left[512];
            size_t n;
            if (!json_string(j)) return false;
            n = j->nstring;
            if (n >= sizeof left) return json_wrong(j, at, "a token of more than 511 bytes");
            memcpy(left, j->string, n);
            if (!json_expect(j, ',') || !json_string(j) || !json_expect(j, ']') ||
                !bpe__add_merge(b, j, at, left, n, j->string, j->nstring, rank))
                return false;
        } else { /* "a b" */
            if (!json_string(j)) return false;
            const char *blank = (const char *)memchr(j->string, ' ', j->nstring);
            if (!blank) return json_wrong(j, at, "a merge must be two tokens with a blank between them");
            size_t n = (size_t)(blank - j->string);
            if (!bpe__add_merge(b, j, at, j->string, n, blank + 1, j->nstring - n - 1, rank)) return false;
        }
        rank++;
    } while (json_next(j, ','));
    return json_expect(j, ']');
}
static inline bool bpe__read_added(bpe *b, json_text *j)
{
    static const char *const keys[] = { "id", "content", "single_word", "lstrip", "rstrip", "normalized", "special" };
    if (!json_expect(j, '[')) return false;
    if (json_next(j, ']')) return true;
    do {
        size_t place[7], end;
        double id;
        json_blank(j);
        size_t at = j->at;
        if (!json_members(j, keys, place, 7)) return false;
        end = j->at;
        if (!place[0] || !place[1]) return json_wrong(j, at, "an added token needs id and content");
        if (json_is(j, place[2], "true")) return json_wrong(j, place[2], "single_word is not supported");
        j->at = place[0];
        if (!json_number(j, &id) || !json_string_at(j, place[1])) return false;
        if (!j->nstring) return json_wrong(j, place[1], "an added token is empty");
        if (!bpe__add_token(b, j, at, id, true)) return false;
        bpe__token *t = &b->token[(int32_t)id];
        if (t->added) return json_wrong(j, at, "this token is added twice");
        t->added = true;
        t->left = json_is(j, place[3], "true");
        t->right = json_is(j, place[4], "true");
        t->normalized = json_is(j, place[5], "true");
        t->special = json_is(j, place[6], "true");
        int32_t *p = (int32_t *)realloc(b->added, (size_t)(b->nadded + 1) * sizeof *p);
        if (!p) return json_wrong(j, at, "out of memory");
        b->added = p;
        b->added[b->nadded++] = (int32_t)id;
        j->at = end;
    } while (json_next(j, ','));
    return json_expect(j, ']');
}
/* null, or not there */
static inline bool bpe__unset(json_text *j, size_t place) { return !place || json_is(j, place, "null"); }
static inline bool bpe__unset_or_empty(json_text *j, size_t place) { return bpe__unset(j, place) || json_is(j, place, "\"\""); }
static inline bool bpe__is_type(json_text *j, size_t place, const char *type, const char *what)
{
    static const char *const keys[] = { "type" };
    size_t                   at[1];
    char                     text[160];
    j->at = place;
    if (!place || json_is(j, place, "null")) {
        snprintf(text, sizeof text, "%s is missing; it must be of type %s", what, type);
        return json_wrong(j, place, text);
    }
    j->at = place;
    if (!json_members(j, keys, at, 1) || !json_string_at(j, at[0])) return false;
    if (!strcmp(j->string, type)) return true;
    snprintf(text, sizeof text, "%s of type %.60s is not supported; it must be %s", what, j->string, type);
    return json_wrong(j, at[0], text);
}
static inline bool bpe__read(bpe *b, json_text *j)
{
    static const char *const top[] = { "normalizer", "pre_tokenizer", "model", "added_tokens" };
    static const char *const pre[] = { "add_prefix_space", "use_regex" };
    static const char *const in[] = {
        "vocab",         "merges",    "dropout",      "continuing_subword_prefix", "end_of_word_suffix",
        "byte_fallback", "unk_token", "ignore_merges"
    };
    size_t t[4], p[2], m[8];
    if (!json_members(j, top, t, 4)) return false;
    json_blank(j);
    if (j->at < j->n) return json_wrong(j, j->at, "more text behind the end");
    if (!bpe__unset(j, t[0])) return json_wrong(j, t[0], "a normalizer is not supported");
    if (!bpe__is_type(j, t[1], "ByteLevel", "a pre_tokenizer") || !bpe__is_type(j, t[2], "BPE", "a model")) return false;
    j->at = t[1];
    if (!json_members(j, pre, p, 2)) return false;
    b->prefix_space = !p[0] || json_is(j, p[0], "true");
    b->words = !p[1] || json_is(j, p[1], "true");
    j->at = t[2];
    if (!json_members(j, in, m, 8)) return false;
    if (!m[0] || !m[1]) return json_wrong(j, t[2], "the model needs vocab and merges");
    if (!bpe__unset(j, m[2])) return json_wrong(j, m[2], "dropout is not supported");
    for (int i = 3; i < 5; i++)
        if (!bpe__unset_or_empty(j, m[i])) return json_wrong(j, m[i], "prefixes and suffixes of words are not supported");
    if (json_is(j, m[5], "true")) return json_wrong(j, m[5], "byte_fallback is not supported");
    b->ignore_merges = json_is(j, m[7], "true");
    j->at = m[0];
    if (!bpe__read_vocab(b, j)) return false;
    j->at = m[1];
    if (!bpe__read_merges(b, j)) return false;
    j->at = t[3];
    if (t[3] && !bpe__read_added(b, j)) return false;
    for (int i = 0; i < 256; i++) {
        char   four[4];
        size_t n = json__put(bpe__shown(i), four);
        b->byte[i] = bpe__find(b, four, n);
        if (b->byte[i] < 0 && !bpe__unset(j, m[6]))
            return json_wrong(j, m[6], "unk_token needs a vocabulary with all 256 bytes");
    }
    return true;
}
static inline void bpe_free(bpe *b)
{
    if (!b) return;
    free(b->pool), free(b->token), free(b->name), free(b->merge), free(b->added);
    free(b);
}
static inline bpe *bpe_parse(const char *json, size_t n, const char *name)
{
    json_text j = { NULL, NULL, 0, 0, NULL, 0, 0 };
    bpe      *b = (bpe *)calloc(1, sizeof *b);
    j.text = json, j.n = n, j.name = name;
    bool ok = b && bpe__read(b, &j);
    if (!b) dt_fail(DT_ERR_MEMORY, "%.200s: out of memory", name);
    json_free(&j);
    if (ok) return b;
    bpe_free(b);
    return NULL;
}
static inline bpe *bpe_open(const char *path)
{
    size_t n;
    char  *text = json_file(path, &n);
    bpe   *b = text ? bpe_parse(text, n, path) : NULL;
    free(text);
    return b;
}
static inline int64_t bpe_vocab(const bpe *b) { return b->ntokens; }
static inline int64_t bpe_find(const bpe *b, const char *token) { return bpe__find(b, token, strlen(token)); }

/* ---- one word: its symbols in a list, the possible merges in a heap, by rank and place */
typedef struct bpe__symbol {
    int32_t id;         /* -1: it became a part of the one before */
    int64_t before, next; /* -1: none */
} bpe__symbol;
typedef struct bpe__chance {
    int32_t rank, left, right, made;
    int64_t at, next; /* the two symbols, which must still be as they were */
} bpe__chance;
typedef struct bpe__work {
    const bpe   *b;
    bpe__symbol *symbol;
    bpe__chance *heap;
    size_t       room, nheap; /* of symbols; the heap has room for three times as many */
    int64_t     *ids, n, most;
} bpe__work;
static inline bool bpe__sooner(const bpe__chance *a, const bpe__chance *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}
static inline void bpe__offer(bpe__work *w, int64_t at, int64_t next)
{
    if (at < 0 || next < 0) return;
    const bpe__merge *e = bpe__merge_of(w->b, w->symbol[at].id, w->symbol[next].id);
    if (!e) return;
    bpe__chance c;
    c.rank = e->rank, c.left = e->left, c.right = e->right, c.made = e->made, c.at = at, c.next = next;
    size_t i = w->nheap++;
    for (; i > 0 && bpe__sooner(&c, &w->heap[(i - 1) / 2]); i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
}
static inline bpe__chance bpe__take(bpe__work *w)
{
    bpe__chance first = w->heap[0], last = w->heap[--w->nheap];
    size_t      i = 0, k;
    while ((k = 2 * i + 1) < w->nheap) {
        if (k + 1 < w->nheap && bpe__sooner(&w->heap[k + 1], &w->heap[k])) k++;
        if (!bpe__sooner(&w->heap[k], &last)) break;
        w->heap[i] = w->heap[k];
        i = k;
    }
    w->heap[i] = last;
    return first;
}
static inline void bpe__emit(bpe__work *w, int32_t id)
{
    if (w->n < w->most) w->ids[w->n] = id;
    w->n++;
}
static inline bool bpe__encode_word(bpe__work *w, const char *s, size_t n)
{
    int64_t last = -1, first = -1;
    if (w->room < n) {
        size_t       room = 2 * n + 64;
        bpe__symbol *p = (bpe__symbol *)realloc(w->symbol, room * sizeof *p);
        if (p) w->symbol = p;
        bpe__chance *q = p ? (bpe__chance *)realloc(w->heap, 3 * room * sizeof *q) : NULL;
        if (!q) return false;
        w->heap = q, w->room = room;
    }
    if (w->b->ignore_merges && n <= 256) {
        char   text[1024];
        size_t at = 0;
        for (size_t i = 0; i < n; i++) at += json__put(bpe__shown((unsigned char)s[i]), text + at);
        int32_t id = bpe__find(w->b, text, at);
        if (id >= 0) return bpe__emit(w, id), true;
    }
    for (size_t i = 0; i < n; i++) {
        int32_t id = w->b->byte[(unsigned char)s[i]];
        if (id < 0) continue;
        int64_t at = last + 1;
        w->symbol[at].id = id, w->symbol[at].before = last, w->symbol[at].next = -1;
        if (last >= 0) w->symbol[last].next = at;
        else first = at;
        last = at;
    }
    w->nheap = 0;
    for (int64_t i = 0; i < last; i++) bpe__offer(w, i, i + 1);
    while (w->nheap) {
        bpe__chance c = bpe__take(w);
        bpe__symbol *a = &w->symbol[c.at];
        if (a->id != c.left || a->next != c.next || w->symbol[c.next].id != c.right)
            continue; /* one of them was merged since */
        a->id = c.made;
        a->next = w->symbol[c.next].next;
        w->symbol[c.next].id = -1;
        if (a->next >= 0) w->symbol[a->next].before = c.at;
        bpe__offer(w, a->before, c.at);
        bpe__offer(w, c.at, a->next);
    }
    for (int64_t i = first; i >= 0; i = w->symbol[i].next) bpe__emit(w, w->symbol[i].id);
    return true;
}
static inline bool bpe__encode_words(bpe__work *w, const char *s, size_t n)
{
    char *with = NULL;
    bool  ok = true;
    if (n && w->b->prefix_space && s[0] != ' ') { /* copies: the blank belongs to the first word */
        with = (char *)malloc(n + 1);
        if (!with) return false;
        with[0] = ' ';
        memcpy(with + 1, s, n++);
        s = with;
    }
    for (size_t at = 0, end; at < n && ok; at = end) {
        end = w->b->words ? bpe__word(s, n, at) : n;
        ok = bpe__encode_word(w, s + at, end - at);
    }
    free(with);
    return ok;
}
/* Cuts at added tokens: the first that occurs, of those at one place the longest. Those that are `normalized` come in a second
   pass, over what the first one left. */
static inline bool bpe__encode_added(bpe__work *w, const char *s, size_t n, bool normalized)
{
    const bpe *b = w->b;
    size_t     from = 0;
    for (size_t at = 0; at < n;) {
        int32_t best = -1;
        for (int64_t i = 0; i < b->nadded; i++) {
            const bpe__token *t = &b->token[b->added[i]];
            if (t->normalized == normalized && t->ntext <= n - at && b->pool[t->text] == s[at] &&
                !memcmp(b->pool + t->text, s + at, t->ntext) && (best < 0 || t->ntext > b->token[best].ntext))
                best = b->added[i];
        }
        if (best < 0) {
            at++;
            continue;
        }
        const bpe__token *t = &b->token[best];
        size_t            end = at + t->ntext, start = at, k;
        if (t->right) end = bpe__run(s, n, end, BPE__SPACE);
        if (t->left) /* the blanks before it: forwards, because characters have several bytes */
            for (size_t i = from, run = from; i <= at; i += k) {
                if (i == at) start = run;
                if (bpe__kind_at(s, at, i, &k) != BPE__SPACE) run = i + k;
                if (i == at) break;
            }
        if (!(normalized ? bpe__encode_words(w, s + from, start - from) : bpe__encode_added(w, s + from, start - from, true)))
            return false;
        bpe__emit(w, best);
        at = from = end;
    }
    return normalized ? bpe__encode_words(w, s + from, n - from) : bpe__encode_added(w, s + from, n - from, true);
}
static inline int64_t bpe_encode(const bpe *b, const char *text, size_t n, int64_t *ids, int64_t room)
{
    bpe__work w;
    memset(&w, 0, sizeof w);
    w.b = b, w.ids = ids, w.most = room;
    size_t m = bpe_repair(text, n, NULL, 0);
    char  *whole = (char *)malloc(m + 1);
    bool   ok = whole != NULL;
    if (ok) {
        bpe_repair(text, n, whole, m);
        ok = bpe__encode_added(&w, whole, m, false);
    }
    free(whole), free(w.symbol), free(w.heap);
    return ok ? w.n : dt_fail(DT_ERR_MEMORY, "bpe_encode: out of memory for a text of %zu bytes", n);
}
static inline size_t bpe_decode(const bpe *b, const int64_t *ids, int64_t n, bool special, char *out, size_t room)
{
    size_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        const bpe__token *t = ids[i] >= 0 && ids[i] < b->ntokens ? &b->token[ids[i]] : NULL;
        if (!t || !t->there || (t->special && !special)) continue;
        for (size_t k = 0; k < t->nbytes; k++, at++)
            if (at < room) out[at] = b->pool[t->bytes + k];
    }
    if (at < room) out[at] = 0;
    return at;
}
static inline size_t bpe_repair(const char *text, size_t n, char *out, size_t room)
{
    size_t made = 0;
    for (size_t i = 0; i < n;) {
        uint32_t    c;
        size_t      bad, k = json__character((const unsigned char *)text + i, n - i, &c, &bad), m = k ? k : 3;
        const char *from = k ? text + i : "\xef\xbf\xbd";
        for (size_t j = 0; j < m; j++, made++)
            if (made < room) out[made] = from[j];
        i += k ? k : bad;
    }
    return made;
}

#endif /* EXAMPLE_BPE_H_INCLUDED */
