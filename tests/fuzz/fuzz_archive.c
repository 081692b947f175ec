/* fuzz_archive.c: the reader of safetensors files under libFuzzer; see fuzz.h.
   The first byte of an input says what it is. Odd: a whole file follows. Even: the text of a header, with N before it
   and as much data behind it as the second byte says, so that mutations reach what stands behind the lengths. */
#ifndef DT_IO_IMPLEMENTATION
#define DT_IO_IMPLEMENTATION /* to see private functions */
#endif
#include "dt_io.h"
#include "dt_nn.h"

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void fuzz_archive(const uint8_t *p, size_t n)
{
    fuzz_begin();
    dt_archive *a = (dt_archive *)dt__alloc_zero(sizeof *a);
    int         rc = dt__archive_parse(a, p, n);
    if ((rc == 0) != (a->code == DT_OK) || (rc && !a->why[0])) abort(); /* refused, and without a reason */
    if (fuzz_peak - fuzz_before > 6 * n + 4096) abort();                /* more memory than the file is worth */
    for (int64_t i = 0; !rc && i < dt_archive_count(a); i++) {
        dt_archive_entry e;
        if (!dt_archive_info(a, i, &e) || dt_archive_find(a, e.name) != i) abort();
        dt_tensor *t = e.known ? dt_archive_get(a, e.name) : NULL;
        if (e.known && (!t || dt_nbytes(t) != e.nbytes)) abort();
    }
    for (int64_t i = 0; !rc && i < a->nmetas; i++)
        if (!dt_archive_get_string(a, a->meta[i].key)) abort();
    dt_end();
    dt_archive_free(a);
    fuzz_end();
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2) return 0;
    if (data[0] & 1) {
        fuzz_archive(data + 1, n - 1);
        return 0;
    }
    uint64_t len = n - 2;
    uint8_t *p = (uint8_t *)malloc(8 + n - 2 + data[1]); /* a block of its own: reads past its end are seen */
    if (!p) return 0;
    memcpy(p, &len, 8);
    memcpy(p + 8, data + 2, n - 2);
    memset(p + 8 + n - 2, 1, data[1]);
    fuzz_archive(p, 8 + n - 2 + data[1]);
    free(p);
    return 0;
}
