/* fuzz_codec.c: the codecs of dt_comm.h under libFuzzer. The first byte: bits 0 to 2 the kind; bit 3: add; bit 4: the input is
   floats, which are encoded, decoded and compared; else it is bytes for dt_codec_decode, and with bit 5 their magic number,
   kind and length are put right. Then a byte each: number of floats, levels, bucket, ratio. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dt_comm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What was sent and the residual are p, or the call was refused and changed nothing. */
static void fuzz_codec_encode(const dt_codec *c, const uint8_t *data, size_t nbytes)
{
    int64_t n = (int64_t)(nbytes / 8), bound = dt_codec_bound(c, n);
    size_t  room = (size_t)n * 4 + !n;
    if (bound < 0) abort();
    float *in = (float *)malloc(room), *residual = (float *)malloc(room), *out = (float *)malloc(room);
    char  *wire = (char *)malloc((size_t)bound);
    if (!in || !residual || !out || !wire) abort();
    memcpy(in, data, (size_t)n * 4);
    memcpy(residual, data + n * 4, (size_t)n * 4);
    int64_t got = dt_codec_encode(c, in, n, residual, 1, (uint64_t)n, wire, bound);
    if (got == DT_COMM_ERR_NONFINITE) {
        if (memcmp(residual, data + n * 4, (size_t)n * 4)) abort();
    } else {
        if (got != bound || dt_codec_decode(c, wire, got, out, n, false)) abort();
        for (int64_t i = 0; i < n; i++) {
            float before, p;
            memcpy(&before, data + (n + i) * 4, 4);
            p = before + in[i];
            if (!isfinite(p) || !isfinite(out[i]) || p - out[i] != residual[i]) abort();
        }
    }
    free(in);
    free(residual);
    free(out);
    free(wire);
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    enum { FRONT = 5 };
    dt_codec c = { 0 };
    float    out[256], before[256];
    if (n < FRONT) return 0;
    c.kind = data[0] & 7;
    c.levels = data[2];
    c.bucket = data[3];
    c.ratio = data[4] / 255.0;
    if (data[0] & 16) {
        fuzz_codec_encode(&c, data + FRONT, n - FRONT);
        return 0;
    }
    int64_t floats = data[1];
    bool    add = data[0] & 8;
    size_t  nwire = n - FRONT;
    char   *wire = (char *)malloc(nwire + !nwire); /* its own size: a byte more is seen */
    if (!wire) return 0;
    memcpy(wire, data + FRONT, nwire);
    if (data[0] & 32 && nwire >= 16) {
        int32_t kind = c.kind;
        memcpy(wire, "DTC1", 4);
        memcpy(wire + 4, &kind, 4);
        memcpy(wire + 8, &floats, 8);
    }
    for (int i = 0; i < 256; i++) out[i] = before[i] = 0.5f;
    int status = dt_codec_decode(&c, wire, (int64_t)nwire, out, floats, add);
    if (status && (memcmp(out, before, sizeof out) || !dt_comm_error(NULL))) abort();
    for (int i = 0; i < 256; i++)
        if (i >= floats ? out[i] != before[i] : !status && !add && !isfinite(out[i])) abort();
    free(wire);
    return 0;
}
