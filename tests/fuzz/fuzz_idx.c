/* fuzz_idx.c: IDX files under libFuzzer; see fuzz_set.h. The first byte says: bit 0, there are labels, and the second
   byte times 16 is where they begin; bit 1, files are made as long as their headers say. The third is the number of
   classes. */
#include "fuzz.h"

#include "dt_data.h"
#include "fuzz_set.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 3) return 0;
    dt_open_opts   o = { 0 };
    const uint8_t *p = data + 3;
    size_t         nx = n - 3, cut = data[0] & 1 ? (size_t)data[1] * 16 : nx;
    if (cut > nx) cut = nx;
    fuzz_begin();
    const char *x = fuzz_file(0, p, cut), *y = data[0] & 1 ? fuzz_file(1, p + cut, nx - cut) : "none";
    if (data[0] & 1) {
        o.labels = y;
        o.classes = data[2];
    }
    dt_dataset *s = dt_idx_open_with(x, o);
    size_t      most = n + (1 << 20);
    for (int turn = 0; turn < 2 && !s && data[0] & 2; turn++)
        if (fuzz_fit(x, 0) || fuzz_fit(y, 1)) {
            s = dt_idx_open_with(x, o);
            most = (1 << 16) + (1 << 20);
        }
    fuzz_set(s, most);
    fuzz_end();
    return 0;
}
