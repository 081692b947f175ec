/* fuzz_profile.c: profiles of dt_scale.h under libFuzzer. The input is the file. */
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

static void fuzz_profile_again(const dt_scale_model *m) /* what is written can be read, and is then written alike */
{
    size_t          n = dt_scale_profile_text(m, NULL, 0);
    char           *a = (char *)malloc(n + 1), *b = (char *)malloc(n + 1);
    dt_scale_model *k = NULL;
    if (a && b) {
        if (dt_scale_profile_text(m, a, n + 1) != n || !(k = dt_scale_profile_parse("again", a, n))) abort();
        if (k->nlayers != m->nlayers || k->ngrads != m->ngrads || !(k->batch > 0)) abort();
        if (dt_scale_profile_text(k, b, n + 1) > n + 64) abort();
    }
    dt_scale_model_free(k);
    free(a);
    free(b);
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text = (char *)malloc(n + !n); /* its own size: a byte more is seen */
    if (!text) return 0;
    if (n) memcpy(text, data, n);
    dt_scale_model *m = dt_scale_profile_parse("profile", text, n);
    if (m) {
        dt_scale_cluster c;
        dt_scale_opts    o = DT__NO_OPTIONS;
        if (m->nlayers < 1 || !(m->batch >= 1) || !(m->parameter_bytes >= 1)) abort();
        fuzz_profile_again(m);
        dt_scale_cluster_default(&c);
        o.model = m;
        o.cluster = &c;
        for (int zero = 0; zero < 4; zero += 3) {
            o.layout.zero = zero;
            dt_scale_prediction *p = dt_scale_predict(&o);
            if (p ? !(p->step >= 0 && isfinite(p->step)) : !dt_plan_error()) abort();
            dt_scale_prediction_free(p);
        }
        dt_scale_model_free(m);
    } else if (!dt_plan_error() || (!strstr(dt_plan_error(), "expected") && !strstr(dt_plan_error(), "memory"))) abort();
    free(text);
    return 0;
}
