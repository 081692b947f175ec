/* fuzz_cluster.c: the description of a cluster of dt_scale.h under libFuzzer. The input is the file. */
#ifndef DT_STATIC
#define DT_STATIC
#endif
#ifndef DT_BASE_IMPLEMENTATION
#define DT_BASE_IMPLEMENTATION
#endif
#ifndef DT_PLAN_IMPLEMENTATION
#define DT_PLAN_IMPLEMENTATION
#endif
#ifndef DT_SCALE_IMPLEMENTATION
#define DT_SCALE_IMPLEMENTATION
#endif
#include "dt_scale.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    dt_scale_cluster c;
    char            *text = (char *)malloc(n + !n); /* its own size: a byte more is seen */
    if (!text) return 0;
    if (n) memcpy(text, data, n);
    memset(&c, 0, sizeof c);
    if (dt_scale_cluster_parse(&c, "cluster", text, n) == 0) {
        bool ok = c.machines > 0 && c.per_machine > 0 && (int64_t)c.machines * c.per_machine <= 1 << 20 && c.device.speed > 0 &&
                  isfinite(c.device.speed) && c.together >= 0 && c.together <= 1 && c.busy >= 0 && c.busy <= 1 &&
                  (c.per_machine == 1 || c.intra.rate >= 1) && (c.machines == 1 || c.inter.rate >= 1);
        if (!ok) abort();
        if (c.machines * c.per_machine <= 64) { /* whatever was read can be predicted with */
            dt_scale_opts   o = DT__NO_OPTIONS;
            dt_scale_model *m = dt_scale_model_new("alexnet");
            o.model = m;
            o.cluster = &c;
            o.batch = 8;
            dt_scale_prediction *p = m ? dt_scale_predict(&o) : NULL;
            if (p && !(p->step > 0 && isfinite(p->step))) abort();
            if (!p && !dt_plan_error()) abort();
            dt_scale_prediction_free(p);
            dt_scale_model_free(m);
        }
    } else if (!dt_plan_error() || !strstr(dt_plan_error(), "expected")) abort();
    free(text);
    return 0;
}
