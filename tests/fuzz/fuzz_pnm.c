/* fuzz_pnm.c: PGM and PPM files in class folders under libFuzzer; see fuzz_set.h. The first byte: bit 0, there is a
   second image, and the second byte is where it begins; bit 1, files are made as long as their headers say. */
#include "fuzz.h"

#include "dt_data.h"
#include "fuzz_set.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2) return 0;
    bool   two = data[0] & 1;
    char   set[2][128], *dir = set[two];
    size_t len = n - 2, cut = two && data[1] < len ? data[1] : len;
    snprintf(set[0], sizeof set[0], "%s/one", fuzz_dir());
    snprintf(set[1], sizeof set[1], "%s/two", fuzz_dir());
    fuzz_begin();
    fuzz_file(0, data + 2, cut);
    if (two) fuzz_file(1, data + 2 + cut, len - cut);
    dt_dataset *s = dt_folder_open(dir);
    if (!s && data[0] & 2 && fuzz_fit("x.pgm", 0)) s = dt_folder_open(dir);
    if (!s && data[0] & 2 && fuzz_fit("y.ppm", 1)) s = dt_folder_open(dir);
    fuzz_set(s, n + (1 << 20));
    fuzz_end();
    return 0;
}
