/* test_models.c: the networks of examples/models.h have the parameters, outputs and gradients of torchvision's and transformers'
   models with the same weights (golden/make_models.py). Small ones in make test, those of full size in test-all.
   run: long, asan-later, no-valgrind, -O1 */
#include "dt_test.h"

#include "dt_layers.h"
#include "examples/models.h"
#include "golden/models.h"
#include "temp_files.h"

UTEST_STATE();
int main(int argc, const char *const *argv) { return utest_main(argc, argv); }

/* ---- the formula of make_models.py */
static uint64_t name_hash(const char *name)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (; *name; name++) h = (h ^ (uint8_t)*name) * 0x100000001b3ull;
    return h;
}
static double unit(uint64_t h, int64_t i)
{
    uint64_t z = h + ((uint64_t)i + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return (double)(z >> 40) * 0x1p-23 - 1;
}
static float *formula(const char *name, int64_t n, double add, double times)
{
    float   *v = malloc((size_t)(n + 1) * sizeof *v);
    uint64_t h = name_hash(name);
    for (int64_t i = 0; v && i < n; i++) v[i] = (float)(add + times * unit(h, i));
    return v;
}
static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n >= k && !strcmp(name + n - k, end);
}
static void set_value(dt_tensor *t, const char *name)
{
    int64_t n = dt_numel(t), fan = 1;
    double  add = 0, times = 0.125;
    for (int i = 1; i < dt_ndim(t); i++) fan *= dt_size(t, i);
    if (ends_in(name, "num_batches_tracked")) {
        dt_fill(t, 0);
        return;
    }
    if (ends_in(name, "running_var")) add = 1, times = 0.5;
    else if (ends_in(name, "running_mean")) times = 0.125;
    else if (dt_ndim(t) > 1) times = sqrt((dt_ndim(t) == 4 ? 6.0 : 3.0) / (double)fan);
    else if (!ends_in(name, "bias")) add = 0.75, times = 0.25;
    float *v = formula(name, n, add, times);
    dt_copy_in(t, v, (size_t)n * sizeof *v);
    free(v);
}
static dt_tensor *floats(const char *name, dt_shape shape)
{
    int64_t n = 1;
    for (int i = 0; i < shape.ndim; i++) n *= shape.dim[i];
    float     *v = formula(name, n, 0, 1.75);
    dt_tensor *t = dt_from(v, shape);
    free(v);
    return t;
}
static dt_tensor *tokens_below(const char *name, int64_t b, int64_t t, int64_t vocab)
{
    int64_t  v[512];
    uint64_t h = name_hash(name);
    for (int64_t i = 0; i < b * t; i++) v[i] = (int64_t)((unit(h, i) + 1) * 0.5 * (double)vocab);
    return dt_from(v, DT_SHAPE(b, t), .dtype = DT_I64);
}

/* ---- a net by its name. second: BERT's pooled output, Inception's other head, or NULL */
static transformer_opts small(const models_case *c)
{
    transformer_opts o = { .layers = 2, .heads = 4, .dim = 32, .vocab = 99, .context = 24 };
    if (!strcmp(c->net, "llama")) o.kv_heads = 2, o.ff = 48, o.eps = 1e-6;
    if (!strcmp(c->net, "bert")) o.ff = 64;
    if (!strcmp(c->net, "vit")) o.patch = 8, o.ff = 64, o.classes = 10;
    return o;
}
static dt_tensor *forward(dt_model *m, const models_case *c, dt_tensor **second)
{
    const int64_t   *s = c->shape;
    net_opts         o = { .classes = c->full ? 1000 : 10, .width = c->full ? 1 : 0.125, .dropout = DT_ZERO };
    transformer_opts t = { .layers = 0 };
    int              depth;
    *second = NULL;
    if (!c->full) t = small(c);
    if (!s[2]) {
        int64_t    vocab = c->full ? !strcmp(c->net, "gpt2") ? 50257 : !strcmp(c->net, "bert") ? 30522 : 49152 : 99;
        dt_tensor *x = tokens_below("tokens", s[0], s[1], vocab);
        if (!strcmp(c->net, "gpt2")) return gpt2(m, x, t);
        if (!strcmp(c->net, "llama")) {
            if (c->full) /* SmolLM-135M */
                t = (transformer_opts){
                    .layers = 30, .heads = 9, .kv_heads = 3, .dim = 576, .ff = 1536, .vocab = 49152, .eps = 1e-5, .tied = true
                };
            return llama(m, x, t);
        }
        uint8_t mask[64];
        int64_t types[64];
        for (int64_t i = 0; i < s[0] * s[1]; i++) mask[i] = i < s[1] + 7, types[i] = i % s[1] >= s[1] / 2;
        t.mask = dt_from(mask, DT_SHAPE(s[0], s[1]), .dtype = DT_U8);
        t.types = dt_from(types, DT_SHAPE(s[0], s[1]), .dtype = DT_I64);
        t.pooled = second;
        return bert(m, x, t);
    }
    dt_tensor *x = floats("x", DT_SHAPE(s[0], s[1], s[2], s[3]));
    if (!strcmp(c->net, "vit")) return vit(m, x, t);
    if (!strcmp(c->net, "alexnet")) return alexnet(m, x, o);
    if (!strcmp(c->net, "vgg16")) return vgg16(m, x, o);
    if (!strcmp(c->net, "unet")) {
        o.classes = 0;
        return unet(m, x, o);
    }
    if (!strcmp(c->net, "mobilenet_v2")) {
        o.width = c->full ? 1 : 0.25;
        return mobilenet_v2(m, x, o);
    }
    if (!strcmp(c->net, "inception_v3")) {
        o.width = c->full ? 1 : 0.0625;
        if (c->train) o.aux = second;
        dt_tensor *unused;
        if (c->full) o.aux = &unused; /* the file has the head's parameters, but torchvision uses it in training only */
        return inception_v3(m, x, o);
    }
    return sscanf(c->net, "resnet%d", &depth) == 1 ? resnet(m, x, depth, o) : NULL;
}
static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
/* SHA-256 of the sorted lines "name sizes" */
static void list_digest(dt_model *m, char hex[65])
{
    int       n = dt_model_count(m);
    char    **line = malloc((size_t)n * sizeof *line);
    uint8_t   sum[32];
    dt_sha256 h;
    for (int i = 0; i < n; i++) {
        dt_parameter_info p;
        char              text[256];
        dt_model_get(m, i, &p);
        int at = snprintf(text, sizeof text, "%s ", p.name);
        for (int k = 0; k < dt_ndim(p.value); k++)
            at += snprintf(text + at, sizeof text - (size_t)at, "%s%lld", k ? "," : "", (long long)dt_size(p.value, k));
        snprintf(text + at, sizeof text - (size_t)at, "\n");
        line[i] = strdup(text);
    }
    qsort(line, (size_t)n, sizeof *line, by_text);
    dt_sha256_begin(&h);
    for (int i = 0; i < n; i++) dt_sha256_add(&h, line[i], strlen(line[i])), free(line[i]);
    dt_sha256_end(&h, sum);
    free(line);
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", sum[i]);
}
static double norm_of(dt_tensor *t, const char *along, double *dot)
{
    int64_t  n = dt_numel(t);
    float   *v = malloc((size_t)(n + 1) * sizeof *v);
    uint64_t h = along ? name_hash(along) : 0;
    double   sum = 0;
    dt_copy_out(t, v, (size_t)n * sizeof *v);
    if (dot) *dot = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)v[i] * v[i];
        if (dot && along) *dot += v[i] * unit(h, i);
    }
    free(v);
    return sqrt(sum);
}
static double apart(double got, double want, double size) { return fabs(got - want) / size; }
static dt_tensor *weighted(dt_tensor *y, const char *probe) { return dt_sum(dt_mul(y, floats(probe, dt_shape_of(y)))); }

/* False after a message. worst[0]: of outputs, relative to their root mean square; worst[1]: of gradients, to their norms */
static bool net_is_right(const models_case *c, double worst[2])
{
    dt_model  *m = dt_model_new(.seed = 1);
    dt_tensor *second, *y;
    char       hex[65];
    int64_t    numel = 0;
    bool       ok = true;
    worst[0] = worst[1] = 0;
    if (!c->train) dt_model_eval(m);
    dt_no_grad_begin();
    ok = forward(m, c, &second) != NULL;
    dt_end();
    dt_no_grad_end();
    for (int i = 0; ok && i < dt_model_count(m); i++) {
        dt_parameter_info p;
        dt_model_get(m, i, &p);
        numel += dt_numel(p.value);
        set_value(p.value, p.name);
    }
    if (ok) list_digest(m, hex);
    if (!ok || dt_error() || dt_model_count(m) != c->count || numel != c->numel || strcmp(hex, c->sha256)) {
        printf("    %s: %s; %d tensors of %lld elements, expected %d of %lld with the names of PyTorch\n", c->net,
               dt_error() ? dt_error() : "parameters differ", dt_model_count(m), (long long)numel, c->count,
               (long long)c->numel);
        ok = false;
    }
    if (ok) {
        y = forward(m, c, &second);
        double rms = c->norm / sqrt((double)dt_numel(y)),
               size = c->norm * 1.01; /* the probe's values have a root mean square of 1.01 */
        double total = 0;
        dt_tensor *loss = weighted(y, "probe");
        if (second) loss = dt_add(loss, weighted(second, "probe2")), size *= 2;
        int64_t n = dt_numel(y), step = n / 8 > 1 ? n / 8 : 1;
        float  *v = malloc((size_t)n * sizeof *v);
        dt_copy_out(y, v, (size_t)n * sizeof *v);
        for (int64_t i = 0; i < 8 && i * step < n && !dt_error(); i++)
            worst[0] = fmax(worst[0], apart(v[i * step], c->y[i], rms));
        free(v);
        worst[0] = fmax(worst[0], apart(norm_of(y, NULL, NULL), c->norm, c->norm));
        worst[0] = fmax(worst[0], apart(dt_item(loss), c->loss, size));
        dt_backward(loss);
        for (int i = 0; i < dt_model_count(m) && !dt_error(); i++) {
            dt_parameter_info p;
            dt_model_get(m, i, &p);
            dt_tensor *g = p.buffer ? NULL : dt_grad(p.value);
            double     one = g ? norm_of(g, NULL, NULL) : 0;
            total += one * one;
        }
        worst[1] = apart(sqrt(total), c->grad_norm, c->grad_norm);
        for (const models_grad *g = c->grads; g->name && !dt_error(); g++) {
            dt_tensor *p = dt_model_find(m, g->name);
            size = fmax(g->norm, 1e-3 * c->grad_norm);
            double     along = 0, norm = p ? norm_of(dt_grad(p), g->name, &along) : -1;
            worst[1] = fmax(worst[1], fmax(apart(norm, g->norm, size), apart(along, g->along, size)));
        }
        ok = !dt_error() && worst[0] <= 1e-5 + 4 * c->own[0] && worst[1] <= 1e-5 + 4 * c->own[1];
        if (!ok || getenv("DT_TEST_TABLE"))
            printf("    %s %s (%lld, %lld, %lld, %lld): outputs differ by %.1e of their size, gradients by %.1e (PyTorch's "
                   "f32 from its f64: %.1e, %.1e)%s%s\n",
                   c->net,
                   c->full    ? "full"
                   : c->train ? "small, training"
                              : "small",
                   (long long)c->shape[0], (long long)c->shape[1], (long long)c->shape[2], (long long)c->shape[3], worst[0],
                   worst[1], c->own[0], c->own[1], dt_error() ? ": " : "", dt_error() ? dt_error() : "");
    }
    dt_error_clear();
    dt_model_free(m);
    dt_end();
    dt_empty_cache();
    return ok;
}
static bool nets_are_right(int full, const char *names)
{
    bool ok = true;
    for (size_t i = 0; i < sizeof models_cases / sizeof *models_cases; i++) {
        double worst[2];
        if (models_cases[i].full == full && (!names || strstr(names, models_cases[i].net)))
            ok &= net_is_right(&models_cases[i], worst);
    }
    return ok;
}
UTEST(models, small_ones_have_pytorchs_parameters_outputs_and_gradients) { EXPECT_TRUE(nets_are_right(0, NULL)); }
#define FULL(name, nets)                                                      \
    UTEST(models_of_full_size, name)                                          \
    {                                                                         \
        if (dt_test_quick()) UTEST_SKIP("up to 2 GiB; test-all runs it");     \
        EXPECT_TRUE(nets_are_right(1, nets));                                 \
    }
FULL(alexnet, "alexnet")
FULL(vgg, "vgg16")
FULL(resnets, "resnet18 resnet34 resnet50 mobilenet_v2 unet")
FULL(deep_resnets, "resnet101 resnet152")
FULL(inception, "inception_v3")
FULL(vit, "vit")
FULL(gpt2, "gpt2")
FULL(bert, "bert")
FULL(llama, "llama")
UTEST(models, a_resnet_of_another_depth_is_refused)
{
    dt_model *m = dt_model_new(.seed = 1);
    EXPECT_ERROR(resnet(m, dt_zeros(DT_SHAPE(1, 3, 32, 32)), 42, NET_OPTS(.classes = 10)),
                 "depth 42; it must be 18, 34, 50, 101 or 152");
    dt_model_free(m);
    dt_end();
}

/* ---- generation. gpt2.safetensors is a file of transformers' save_pretrained, gpt2.h what its generate() makes of it */
#include "golden/gpt2.h"
enum { PROMPT = sizeof gpt2_prompt_ids / sizeof *gpt2_prompt_ids, NEXT = sizeof gpt2_next_ids / sizeof *gpt2_next_ids };
static dt_tensor *tiny(dt_model *m, const int64_t *ids, int64_t n, dt_kv_cache **cache)
{
    transformer_opts o = { .layers = 2, .heads = 2, .dim = 16, .vocab = 702, .context = 64, .cache = cache };
    return gpt2(m, dt_from(ids, DT_SHAPE(1, n), .dtype = DT_I64), o);
}
UTEST(generation, greedy_tokens_are_those_of_transformers)
{
    dt_model    *m = dt_model_new(.seed = 1);
    dt_kv_cache *cache[2];
    int64_t      ids[PROMPT + NEXT];
    memcpy(ids, gpt2_prompt_ids, sizeof gpt2_prompt_ids);
    EXPECT_TRUE(dt_model_load(m, "tests/golden/gpt2.safetensors", .strip = "transformer.") >=
                0); /* strictly: nothing missing or left over */
    dt_model_eval(m);
    for (int i = 0; i < 2; i++) cache[i] = dt_kv_cache_new(1, 2, 64, 8);
    dt_no_grad_begin();
    float worst = 0;
    for (int64_t at = 0, len = PROMPT; len < PROMPT + NEXT; at = len++) {
        dt_tensor *fast = dt_select(tiny(m, ids + at, len - at, cache), 1, len - at - 1);
        dt_forward_begin(m);
        dt_tensor *slow = dt_select(tiny(m, ids, len, NULL), 1, len - 1);
        float      apart = (float)dt_item(dt_amax(dt_abs(dt_sub(fast, slow)))) / (float)dt_item(dt_amax(dt_abs(slow)));
        worst = apart > worst ? apart : worst;
        ids[len] = (int64_t)dt_item(dt_argmax(fast));
        EXPECT_EQ(gpt2_next_ids[len - PROMPT], ids[len]);
        dt_end();
    }
    EXPECT_TRUE(worst < 2e-5f); /* the products have other numbers of rows, so the last digits may differ */
    dt_no_grad_end();
    EXPECT_OK(dt_model_seal(m));
    for (int i = 0; i < 2; i++) dt_kv_cache_free(cache[i]);
    dt_model_free(m);
    dt_end();
}
/* Grouped queries and rotary positions behind those of the cache */
UTEST(generation, llama_with_a_cache_is_llama_without)
{
    dt_model        *m = dt_model_new(.seed = 3);
    int64_t          ids[20];
    transformer_opts o = { .layers = 2, .heads = 4, .kv_heads = 2, .dim = 32, .ff = 48, .vocab = 99 }, with = o;
    dt_kv_cache     *cache[2];
    for (int i = 0; i < 20; i++) ids[i] = (i * 37 + 5) % 99;
    for (int i = 0; i < 2; i++) cache[i] = dt_kv_cache_new(1, 2, 20, 8);
    with.cache = cache;
    dt_no_grad_begin();
    dt_tensor *all = llama(m, dt_from(ids, DT_SHAPE(1, 20), .dtype = DT_I64), o);
    for (int64_t at = 0, n = 7; at < 20; at += n, n = 1) { /* the prompt, then one token at a time */
        dt_forward_begin(m);
        dt_tensor *y = llama(m, dt_from(ids + at, DT_SHAPE(1, n), .dtype = DT_I64), with);
        EXPECT_CLOSE_TO(y, dt_narrow(all, 1, at, n), 1e-6, 1e-5);
    }
    dt_forward_begin(m);
    EXPECT_ERROR(llama(m, dt_from(ids, DT_SHAPE(1, 1), .dtype = DT_I64), with), "exceed the capacity of the cache");
    dt_no_grad_end();
    for (int i = 0; i < 2; i++) dt_kv_cache_free(cache[i]);
    dt_model_free(m);
    dt_end();
}
