/* fuzz_feed.c: a frame of a feed (dt_dist.h), as a rank gets it from rank 0, under libFuzzer. Bytes: 0 memory for x in units of
   64 bytes, 1 memory for y in bytes; then the frame, with zeros behind it. */
#ifndef DT_IMPLEMENTATION
#define DT_IMPLEMENTATION
#endif
#include "fuzz.h"

#include "dt_dist.h"

static uint64_t feed_sum(dt_tensor *t) /* of all bytes: one that is not there is seen */
{
    uint64_t sum = 0;
    size_t   n = dt_nbytes(t);
    uint8_t *p = (uint8_t *)malloc(n + !n);
    if (!p || dt_copy_out(t, p, n)) abort();
    for (size_t i = 0; i < n; i++) sum += p[i];
    free(p);
    return sum;
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    dt_feed  f;
    dt_batch b;
    if (n < 2 || n > 4096) return 0;
    fuzz_begin();
    memset(&f, 0, sizeof f);
    memset(&b, 0, sizeof b);
    f.rank = 1;
    f.world = 2;
    f.state = DT__FEED_RUNNING;
    f.x_nbytes = (size_t)64 * (data[0] % 32);
    f.length = (size_t)DT__FEED_HEAD + f.x_nbytes + data[1];
    char *frame = (char *)calloc(1, f.length);
    if (!frame) abort();
    memcpy(frame, data + 2, n - 2 < f.length ? n - 2 : f.length);
    bool got = dt__feed_unpack(&f, frame, &b);
    if (got) {
        if (!b.x || dt_error() || b.n < 0 || b.n > b.x->shape[0] || dt_nbytes(b.x) > f.x_nbytes) abort();
        if (b.y && dt_nbytes(b.y) > data[1]) abort();
        feed_sum(b.x);
        if (b.y) feed_sum(b.y);
    } else if (!dt_error() && ((const dt__feed_head *)(const void *)frame)->kind != DT__FEED_END) abort();
    dt_error_clear();
    dt_end();
    free(frame);
    fuzz_end();
    return 0;
}
