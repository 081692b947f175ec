/* fuzz_npy.c: .npy files under libFuzzer; see fuzz_set.h. An input that begins as a .npy file is one. Else the first
   byte says: bit 0, the text of a header follows, and its length and the magic are put before it (bits 2 and 3: which
   version); bit 1, the file is made as long as the header says. */
#include "fuzz.h"

#include "dt_data.h"
#include "fuzz_set.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    dt_open_opts o = { 0 };
    if (n < 1) return 0;
    bool     whole = data[0] == 0x93;
    size_t   len = n - !whole, lead = !whole && data[0] & 1 ? 12 : 0;
    uint8_t *p = (uint8_t *)malloc(lead + len + 1);
    if (!p) return 0;
    memcpy(p + lead, data + !whole, len);
    if (lead) {
        memcpy(p, "\x93NUMPY\x02\x00", 8);
        p[6] = (uint8_t)(1 + (data[0] >> 2 & 3));
        for (int i = 0; i < 4; i++) p[8 + i] = (uint8_t)(len >> 8 * i);
        if (p[6] == 1) memmove(p + 10, p + 12, len);
        if (p[6] == 1) lead = 10;
    }
    fuzz_begin();
    const char *x = fuzz_file(0, p, lead + len);
    dt_dataset *s = dt_npy_open_with(x, o);
    if (!s && !whole && data[0] & 2 && fuzz_fit(x, 0)) s = dt_npy_open_with(x, o);
    fuzz_set(s, lead + len + (1 << 20));
    fuzz_end();
    free(p);
    return 0;
}
