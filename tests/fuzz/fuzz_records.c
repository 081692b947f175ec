/* fuzz_records.c: CIFAR and other records under libFuzzer; see fuzz_set.h. The first byte chooses; for records of one's
   own the next ones are options. */
#include "fuzz.h"

#include "dt_data.h"
#include "fuzz_set.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    dt_records_opts o = { 0 };
    dt_dataset     *s = NULL;
    if (n < 14) return 0;
    const char *dir = fuzz_dir();
    fuzz_begin();
    const char *x = fuzz_file(0, data + 14, n - 14);
    if (data[0] == 1) s = dt_cifar10_open(dir, DT_TEST);
    else if (data[0] == 2) s = dt_cifar100_open(dir, DT_TEST, data[1] & 1);
    else {
        o.nbytes = (int8_t)data[1];
        o.skip = (int8_t)data[2];
        o.x_at = data[0] & 64 ? INT64_MAX - data[3] : (int8_t)data[3];
        o.y_at = data[0] & 128 ? INT64_MAX - data[4] : (int8_t)data[4];
        o.x_dtype = (dt_dtype)(data[5] & 7);
        o.y_dtype = (dt_dtype)(data[5] >> 4 & 7);
        o.has_y = data[6] & 1;
        o.big_endian = data[6] & 2;
        o.x_shape.ndim = (data[6] >> 2 & 3);
        o.y_shape.ndim = (data[6] >> 4 & 3);
        o.classes = (int8_t)data[7];
        for (int i = 0; i < 3; i++) {
            o.x_shape.dim[i] = data[0] & 32 ? INT64_C(1) << data[8 + i] % 63 : (int8_t)data[8 + i];
            o.y_shape.dim[i] = (int8_t)data[11 + i];
        }
        s = dt_records_open_with(x, o);
    }
    fuzz_set(s, n + (1 << 20));
    fuzz_end();
    return 0;
}
