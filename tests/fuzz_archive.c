/* fuzz_archive.c: the reader of safetensors files under libFuzzer. Not a part of `make test`: only clang has libFuzzer.

       clang -O1 -g -std=c11 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I. tests/fuzz_archive.c \
             -o build/fuzz_archive -lm -lpthread
       mkdir -p build/fuzz
       for f in tests/golden/[a-z]*.safetensors; do { printf 1; cat $f; } > build/fuzz/${f##*[/]}; done
       build/fuzz_archive -dict=tests/fuzz_archive.dict -malloc_limit_mb=64 -max_len=4096 build/fuzz

   The first byte of an input says what it is. Odd: a whole file follows. Even: the text of a header, with N before it
   and as much data behind it as the second byte says, so that mutations reach what stands behind the lengths. */
#define DT_IMPLEMENTATION
#include "../dt_nn.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static size_t fuzz_live, fuzz_peak;
static void  *fuzz_alloc(void *user, size_t n)
{
    void *p = malloc(n);
    (void)user;
    if (p) fuzz_live += n;
    if (fuzz_live > fuzz_peak) fuzz_peak = fuzz_live;
    return p;
}
static void fuzz_free(void *user, void *p, size_t n)
{
    (void)user;
    fuzz_live -= n;
    free(p);
}
static void fuzz_one(const uint8_t *p, size_t n)
{
    size_t before = fuzz_live;
    fuzz_peak = before;
    dt_archive *a = (dt_archive *)dt__alloc_zero(sizeof *a);
    int         rc = dt__archive_parse(a, p, n);
    if ((rc == 0) != (a->code == DT_OK) || (rc && !a->why[0])) abort(); /* refused, and without a reason */
    if (fuzz_peak - before > 6 * n + 4096) abort();                     /* more memory than the file is worth */
    for (int64_t i = 0; !rc && i < dt_archive_count(a); i++) {
        dt_archive_entry e;
        if (!dt_archive_info(a, i, &e) || dt_archive_find(a, e.name) != i) abort();
        dt_tensor *t = e.known ? dt_archive_get(a, e.name) : NULL;
        if (e.known && (!t || dt_nbytes(t) != e.nbytes)) abort();
    }
    for (int64_t i = 0; !rc && i < a->nmetas; i++)
        if (!dt_archive_string(a, a->meta[i].key)) abort();
    dt_end();
    dt_archive_free(a);
    dt_trim();
    if (dt_error() || fuzz_live != before) abort();
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static int ready;
    if (!ready) {
        dt_allocator a = { fuzz_alloc, fuzz_free, NULL };
        dt_set_allocator(&a);
        ready = 1;
    }
    if (n < 2) return 0;
    if (data[0] & 1) {
        fuzz_one(data + 1, n - 1);
        return 0;
    }
    uint64_t len = n - 2;
    uint8_t *p = (uint8_t *)malloc(8 + n - 2 + data[1]); /* a block of its own: reads past its end are seen */
    if (!p) return 0;
    memcpy(p, &len, 8);
    memcpy(p + 8, data + 2, n - 2);
    memset(p + 8 + n - 2, 1, data[1]);
    fuzz_one(p, 8 + n - 2 + data[1]);
    free(p);
    return 0;
}
