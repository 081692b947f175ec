/* fuzz_costs.c: the file of costs of dt_plan.h under libFuzzer. The input is the file. */
#ifndef DT_STATIC
#define DT_STATIC
#endif
#ifndef DT_BASE_IMPLEMENTATION
#define DT_BASE_IMPLEMENTATION
#endif
#define DT_PLAN_IMPLEMENTATION
#include "dt_plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    dt_costs t;
    char    *text = (char *)malloc(n + !n); /* its own size: a byte more is seen */
    if (!text) return 0;
    if (n) memcpy(text, data, n);
    memset(&t, 0, sizeof t);
    if (dt__costs_parse(&t, "costs", text, n) == 0) {
        if (!dt__costs_sane(&t)) abort();
    } else if (!dt_plan_error() || !strstr(dt_plan_error(), "expected")) abort();
    free(text);
    return 0;
}
