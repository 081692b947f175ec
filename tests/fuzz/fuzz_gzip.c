/* fuzz_gzip.c: gzipped IDX files under libFuzzer; see fuzz_set.h. The first byte: bit 0, an unpacked file follows and
   is packed here, at the level of bits 4 to 7, in two members where the second byte times 4 says (if bit 1 is set);
   then the byte at the third is changed by the fourth. Without bit 0 the packed file itself follows. */
#include "fuzz.h"

#include "dt_data.h"
#include "fuzz_set.h"

#include <zlib.h>

static size_t fuzz_member(uint8_t *out, size_t room, const uint8_t *p, size_t n, int level)
{
    z_stream z;
    memset(&z, 0, sizeof z);
    if (deflateInit2(&z, level > 9 ? 9 : level, Z_DEFLATED, 9 + 16, 1, Z_DEFAULT_STRATEGY) != Z_OK) abort();
    z.next_in = (Bytef *)p;
    z.avail_in = (uInt)n;
    z.next_out = out;
    z.avail_out = (uInt)room;
    if (deflate(&z, Z_FINISH) != Z_STREAM_END) abort();
    deflateEnd(&z);
    return room - z.avail_out;
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static uint8_t out[1 << 16];
    dt_open_opts   o = { 0 };
    if (n < 4 || n > 1 << 14) return 0;
    const uint8_t *p = data + 4;
    size_t         len = n - 4;
    if (data[0] & 1) {
        size_t cut = data[0] & 2 && (size_t)data[1] * 4 < len ? (size_t)data[1] * 4 : len, used;
        used = fuzz_member(out, sizeof out, p, cut, data[0] >> 4);
        if (cut < len) used += fuzz_member(out + used, sizeof out - used, p + cut, len - cut, data[0] >> 4);
        out[data[2] % used] ^= data[3];
        p = out;
        len = used;
    } else {
        memcpy(out, p, len);
        if (len > 1) out[0] = 0x1f, out[1] = 0x8b;
        p = out;
    }
    fuzz_begin();
    fuzz_set(dt_idx_open_with(fuzz_file(0, p, len), o), 1032 * 2 * len + (1 << 20));
    fuzz_end();
    return 0;
}
