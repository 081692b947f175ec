/* fuzz_tokens.c: token files under libFuzzer; see fuzz_set.h. The first bytes are options. */
#include "fuzz.h"

#include "dt_data.h"
#include "fuzz_set.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    dt_tokens_opts o = { 0 };
    if (n < 6) return 0;
    o.length = data[0] & 128 ? INT64_C(1) << data[1] % 63 : (int8_t)data[1];
    o.stride = data[0] & 64 ? INT64_C(1) << data[2] % 63 : (int8_t)data[2];
    o.nbytes = data[0] & 7;
    o.skip = (int8_t)data[3];
    o.vocab = data[0] & 32 ? (int64_t)data[4] << 8 | data[5] : 0;
    fuzz_begin();
    fuzz_set(dt_tokens_open_with(fuzz_file(0, data + 6, n - 6), o), n + (1 << 20));
    fuzz_end();
    return 0;
}
