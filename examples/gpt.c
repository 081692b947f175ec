/* A small GPT: learns to predict the next byte of a text, and generates a sample at the end. The last tenth of the data is held
   out: the loss on it is printed at the end. With --load it is a GPT-2 with the weights and the byte-pair tokens of HuggingFace's
   transformers, which continues a prompt, or learns more.

   Build: cc -O2 -I.. gpt.c -o gpt -lm -lpthread            Run: ./gpt --text file.txt --steps 500
                                                                 ./gpt --load gpt2/model.safetensors --prompt "The sea" --steps 0 */
#define DT_IMPLEMENTATION
#include "dt_cuda.h"
#include "dt_data.h"
#include "dt_layers.h"
#include "dt_ops.h"
#include "dt_pipe.h"
#include "dt_plot.h"
#include "example_data.h"
#include "bpe.h"
#include "models.h"

static const char *const gpt_help =
    "gpt [options]: a small GPT learns a text byte by byte, and then writes\n"
    "    --text FILE   default dt.h: the manual and source of the toolkit\n"
    "    --tokens FILE instead of a text: 16-bit tokens below --vocab N (50257); may be a pattern, 'train-*.bin'\n"
    "    --steps N     500         --layers N   4        --dim N   128       --heads N   4       --context N   64\n"
    "    --batch N     16          --lr X       0.003    --workers N  1      --sample N   400 bytes at the end\n"
    "    --opt-level LEVEL   O0 to O3: mixed precision   --checkpoint DIR    save at SIGTERM or Ctrl-C, resume\n"
    "    --csv FILE    a log of every step               --svg FILE          the loss curve\n"
    "    --device D    cpu; cuda or cuda:N: a GPU (docs/gpu.md)\n"
    "    --prompt TEXT what the sample continues           --temperature X  1; 0: always the most probable token\n"
    "    --top-k N     draw from the N most probable tokens (all)\n"
    "    --load FILE   a GPT-2 as safetensors, with HuggingFace's names: --layers, --dim and the vocabulary are the file's, --sample\n"
    "                  is in tokens (100); --steps 0 only writes; --heads N is that of config.json beside it, if it is there\n"
    "    --tokenizer FILE   tokenizer.json of byte-pair tokens (the one beside --load)\n"
    "    --save FILE   the weights at the end, as safetensors with the same names\n"
    "    --data N --pipe N --tensor N   on this many processes (dt_pipe.h): --data batches at a time, the blocks on --pipe of them one\n"
    "                  behind the other, with as many micro-batches, each layer divided between --tensor; then without a sample\n";

typedef struct config {
    int layers, heads, data, pipe, tensor;
    int64_t dim, vocab, context;
    int64_t positions, ff; /* with --load: the longest context that the file has; columns of the MLP */
    bool    loaded;
    bpe    *pairs;         /* NULL: tokens are bytes, or numbers of --tokens */
    int64_t top_k;
    double  temperature;
} config;

static dt_tensor *gpt(dt_model *m, dt_tensor *tokens, const config *c)
{
    int64_t    t = dt_size(tokens, 1);
    dt_tensor *x = dt_embedding(m, "wte", tokens, .num = c->vocab, .dim = c->dim, .split = DT_SPLIT_IN);
    dt_tensor *position = dt_arange(0, (double)t, 1, .dtype = DT_I64, .device = dt_device_of(tokens));
    x = dt_add(x, dt_embedding(m, "wpe", position, .num = c->context, .dim = c->dim));
    for (int i = 0; i < c->layers; i++) {
        if (c->pipe > 1 && i && i * c->pipe / c->layers != (i - 1) * c->pipe / c->layers) {
            char name[16];
            snprintf(name, sizeof name, "h.%d", i);
            x = dt_stage(m, name, x);
        }
        dt_scope_begin(m, "h.%d", i);
        dt_tensor *a = dt_layernorm(m, "ln_1", x);
        x = dt_add(x, dt_multihead_attention(m, "attn", a, .heads = c->heads, .causal = true, .split = DT_SPLIT_HEADS));
        a = dt_linear(m, "mlp.fc", dt_layernorm(m, "ln_2", x), .out = 4 * c->dim, .split = DT_SPLIT_OUT);
        x = dt_add(x, dt_linear(m, "mlp.proj", dt_gelu_tanh(a), .out = c->dim, .split = DT_SPLIT_IN));
        dt_scope_end(m);
    }
    return dt_linear(m, "head", dt_layernorm(m, "ln_f", x), .out = c->vocab, .no_bias = true, .split = DT_SPLIT_OUT);
}

static dt_tensor *logits_of(dt_model *m, dt_tensor *tokens, const config *c, dt_kv_cache **cache)
{
    if (!c->loaded) return gpt(m, tokens, c);
    return gpt2(m, tokens,
                TRANSFORMER_OPTS(.layers = c->layers,
                                    .heads = c->heads,
                                    .dim = c->dim,
                                    .ff = c->ff,
                                    .vocab = c->vocab,
                                    .context = c->positions,
                                    .cache = cache));
}
static dt_tensor *loss_of(dt_model *m, dt_tensor *x, dt_tensor *y, void *user) /* y is x shifted by one token */
{
    const config *c = (const config *)user;
    int64_t       n = dt_size(x, 0) * c->context;
    return dt_cross_entropy_parts(m, dt_reshape(logits_of(m, x, c, NULL), DT_SHAPE(n, c->vocab / c->tensor)),
                                  dt_reshape(y, DT_SHAPE(n)));
}
static double held_out(dt_model *m, dt_pipeline *line, dt_loader *in, config *c)
{
    double sum = 0, n = 0, loss = 0;
    dt_model_eval(m);
    dt_no_grad_begin();
    for (dt_batch b; dt_loader_next(in, &b); dt_end()) {
        if (line) dt_pipeline_forward(line, loss_of, c, b.x, b.y, &loss);
        else loss = dt_item(loss_of(m, b.x, b.y, c));
        sum += (double)b.n * loss;
        n += (double)b.n;
    }
    dt_no_grad_end();
    dt_model_train(m);
    return sum / n;
}

/* Draws a token from the logits of the last position: 1-d, f32. */
static int64_t draw_token(dt_tensor *y, const config *c)
{
    int64_t    k = c->top_k > 0 && c->top_k < c->vocab ? c->top_k : 0, next = 0;
    dt_tensor *at = NULL;
    float      u;
    if (c->temperature <= 0) return (int64_t)dt_item(dt_argmax(y));
    if (k) y = dt_topk(y, k, 0, .index = &at);
    y = dt_softmax(dt_div_scalar(y, c->temperature), 0);
    int64_t n = dt_numel(y), *place = k ? (int64_t *)malloc((size_t)k * sizeof *place) : NULL;
    float  *p = (float *)malloc((size_t)(n + 1) * sizeof *p);
    if (p && !dt_copy_out(y, p, (size_t)n * sizeof *p) &&
        (!k || (place && !dt_copy_out(at, place, (size_t)k * sizeof *place)))) {
        dt_rng_uniform(NULL, &u, 1, 0, 1);
        while (next < n - 1 && (u -= p[next]) > 0) next++;
        if (k) next = place[next];
    }
    free(place), free(p);
    return next;
}
static void show_tokens(const config *c, const int64_t *ids, int64_t n, bool bytes)
{
    char text[8192];
    for (int64_t i = 0; i < n; i++) {
        if (c->pairs) fwrite(text, 1, bpe_decode(c->pairs, ids + i, 1, true, text, sizeof text), stdout);
        else if (bytes) putchar((int)ids[i]);
        else printf("%d ", (int)ids[i]);
    }
    fflush(stdout);
}
/* Generates n tokens behind the `len` tokens of the window, and prints them: bytes as characters, tokens of --tokens as numbers. A
   loaded model keeps keys and values of the tokens so far, so that each step computes one token. If the context is full, the older
   half is forgotten. */
static void sample(dt_model *m, const config *c, int64_t *window, int64_t len, int n, bool bytes)
{
    int64_t       most = c->loaded ? c->positions : c->context, done = 0; /* done: tokens that the cache has */
    dt_kv_cache **cache = c->loaded ? (dt_kv_cache **)calloc((size_t)c->layers, sizeof *cache) : NULL;
    for (int i = 0; cache && i < c->layers; i++)
        cache[i] = dt_kv_cache_new(1, c->heads, most, c->dim / c->heads, .device = dt_model_device(m));
    dt_model_eval(m);
    dt_no_grad_begin();
    for (int i = 0; i < n && !dt_error(); i++) {
        dt_tensor *y = logits_of(
            m, dt_from(window + done, DT_SHAPE(1, len - done), .dtype = DT_I64, .device = dt_model_device(m)), c, cache);
        int64_t    next = draw_token(dt_cast(dt_select(dt_select(y, 0, 0), 0, len - done - 1), DT_F32), c);
        dt_end();
        if (dt_error()) break;
        show_tokens(c, &next, 1, bytes);
        done = cache ? len : 0;
        if (len == most) {
            int64_t keep = cache ? most / 2 : most - 1;
            memmove(window, window + len - keep, (size_t)keep * sizeof *window);
            len = keep, done = 0;
            for (int k = 0; cache && k < c->layers; k++) dt_kv_cache_truncate(cache[k], 0);
        }
        window[len++] = next;
    }
    dt_no_grad_end();
    dt_model_train(m);
    putchar('\n');
    for (int i = 0; cache && i < c->layers; i++) dt_kv_cache_free(cache[i]);
    free(cache);
}

/* What --load names: sizes by the shapes of its tensors, heads by config.json beside it. strip: the prefix of its names, or NULL */
static bool look_into(const char *path, config *c, const char **strip, bool *more)
{
    dt_archive      *a = dt_archive_open(path);
    dt_archive_entry e[3];
    char             name[64];
    int64_t          extra = 0;
    if (!a) return false;
    *strip = dt_archive_find(a, "wte.weight") < 0 ? "transformer." : NULL;
    const char *const keys[3] = { "wte.weight", "wpe.weight", "h.0.mlp.c_fc.bias" };
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s%s", *strip ? *strip : "", keys[i]);
        if (!dt_archive_info(a, dt_archive_find(a, name), &e[i]) || e[i].shape.ndim != (i < 2 ? 2 : 1)) {
            dt_fail(DT_ERR_FILE, "%.300s has no tensor '%s' of %d dimensions: it is not a GPT-2 with the names of HuggingFace",
                    path, name, i < 2 ? 2 : 1);
            dt_archive_free(a);
            return false;
        }
    }
    c->vocab = e[0].shape.dim[0], c->dim = e[0].shape.dim[1], c->positions = e[1].shape.dim[0], c->ff = e[2].shape.dim[0];
    for (c->layers = 0;; c->layers++) {
        snprintf(name, sizeof name, "%sh.%d.ln_1.weight", *strip ? *strip : "", c->layers);
        if (dt_archive_find(a, name) < 0) break;
    }
    /* older files have the masks of the attention, and the output layer, which is the embedding */
    for (int64_t i = 0; i < dt_archive_count(a); i++) {
        size_t n = strlen(dt_archive_name(a, i));
        extra += strstr(dt_archive_name(a, i), ".attn.masked_bias") || !strcmp(dt_archive_name(a, i), "lm_head.weight") ||
                 (n > 10 && !strcmp(dt_archive_name(a, i) + n - 10, ".attn.bias"));
    }
    *more = extra > 0;
    if (dt_archive_count(a) - extra != 12 * c->layers + 4)
        dt_fail(DT_ERR_FILE, "%.300s has %lld tensors, expected 12 for each of %d layers and 4 more", path,
                (long long)(dt_archive_count(a) - extra), c->layers);
    dt_archive_free(a);
    return !dt_error();
}
/* The file of this name in the directory of path */
static void beside(const char *path, const char *name, char *out, size_t room)
{
    const char *slash = strrchr(path, '/');
    snprintf(out, room, "%.*s%s", slash ? (int)(slash + 1 - path) : 0, path, name);
}
static int heads_beside(const char *path, int otherwise)
{
    static const char *const keys[] = { "n_head" };
    char                     config_path[1024];
    size_t                   place[1];
    double                   x = otherwise;
    beside(path, "config.json", config_path, sizeof config_path);
    FILE *f = fopen(config_path, "rb");
    if (!f) return otherwise;
    fclose(f);
    json_text j;
    memset(&j, 0, sizeof j);
    j.name = config_path;
    char *text = json_file(config_path, &j.n);
    j.text = text;
    if (text && json_members(&j, keys, place, 1) && place[0]) {
        j.at = place[0];
        json_number(&j, &x);
    }
    json_free(&j);
    free(text);
    return x >= 1 && x < 1e6 ? (int)x : otherwise;
}

/* ---- a text as windows of byte-pair tokens */
typedef struct windows {
    int64_t *ids, n, length;
} windows;
static int window_get(void *user, int64_t i, void *x, void *y)
{
    const windows *w = (const windows *)user;
    memcpy(x, w->ids + i * w->length, (size_t)w->length * sizeof *w->ids);
    memcpy(y, w->ids + i * w->length + 1, (size_t)w->length * sizeof *w->ids);
    return 0;
}
static void windows_free(void *user)
{
    free(((windows *)user)->ids);
    free(user);
}
static dt_dataset *pair_windows(const bpe *b, const char *path, int64_t length)
{
    size_t   n;
    char    *text = json_file(path, &n);
    windows *w = text ? (windows *)calloc(1, sizeof *w) : NULL;
    if (w) w->n = bpe_encode(b, text, n, NULL, 0);
    if (w && w->n > 0) w->ids = (int64_t *)malloc((size_t)w->n * sizeof *w->ids);
    if (w && w->ids) bpe_encode(b, text, n, w->ids, w->n);
    free(text);
    if (w && w->ids && w->n > length) {
        w->length = length;
        return dt_source(.n = (w->n - 1) / length, .x_dtype = DT_I64, .x_shape = DT_SHAPE(length), .has_y = true,
                         .y_dtype = DT_I64, .y_shape = DT_SHAPE(length), .get = window_get, .free = windows_free, .user = w);
    }
    if (!dt_error())
        dt_fail(DT_ERR_ARG, "%.300s has %lld tokens, expected more than --context %lld", path, (long long)(w ? w->n : 0),
                (long long)length);
    if (w) free(w->ids);
    free(w);
    return NULL;
}
/* Where the sample begins: the last tokens of --prompt that fit; or the first token of the held-out data */
static int64_t begin_with(const config *c, const char *prompt, const dt_dataset *held, int64_t *window)
{
    int64_t most = c->loaded ? c->positions : c->context, n = 0, *first;
    if (prompt && c->pairs) {
        n = bpe_encode(c->pairs, prompt, strlen(prompt), NULL, 0);
        int64_t *ids = n > 0 ? (int64_t *)malloc((size_t)n * sizeof *ids) : NULL;
        n = ids ? bpe_encode(c->pairs, prompt, strlen(prompt), ids, n) : 0;
        for (int64_t i = n > most ? n - most : 0, k = 0; i < n; i++, k++) window[k] = ids[i];
        free(ids);
    } else if (prompt) {
        size_t skip = strlen(prompt) > (size_t)most ? strlen(prompt) - (size_t)most : 0;
        for (prompt += skip; *prompt; prompt++) window[n++] = (unsigned char)*prompt;
    }
    if (n > most) n = most;
    if (n == 0 && c->pairs && bpe_find(c->pairs, "<|endoftext|>") >= 0) window[n++] = bpe_find(c->pairs, "<|endoftext|>");
    if (n == 0 && held && (first = (int64_t *)malloc(2 * (size_t)c->context * sizeof *first)) != NULL) {
        if (!dt_dataset_get(held, 0, first, first + c->context)) window[n++] = first[0];
        free(first);
    }
    if (n == 0) window[n++] = 0;
    for (int64_t i = 0; i < n; i++)
        if (window[i] >= c->vocab) {
            dt_fail(DT_ERR_ARG, "token %lld is not below the model's vocabulary, %lld: the tokenizer is of another model",
                    (long long)window[i], (long long)c->vocab);
            return 0;
        }
    return n;
}

static int learn(void *args)
{
    int         argc = ((example_args *)args)->argc;
    char      **argv = ((example_args *)args)->argv;
    const char *level = example_option(argc, argv, "--opt-level", NULL),
               *dir = example_option(argc, argv, "--checkpoint", NULL), *tokens = example_option(argc, argv, "--tokens", NULL),
               *load = example_option(argc, argv, "--load", NULL), *prompt = example_option(argc, argv, "--prompt", NULL),
               *save = example_option(argc, argv, "--save", NULL), *strip = NULL,
               *text = example_option(argc, argv, "--text", "dt.h");
    int64_t     steps = atoi(example_option(argc, argv, "--steps", "500")),
            size = atoi(example_option(argc, argv, "--batch", "16")), epoch = 0, step = 0;
    int         workers = atoi(example_option(argc, argv, "--workers", "1")), stop = 0;
    config      c;
    char        tokenizer[1024];
    bool        more = false, bytes = !tokens;
    memset(&c, 0, sizeof c);
    c.temperature = atof(example_option(argc, argv, "--temperature", "1"));
    c.top_k = atoi(example_option(argc, argv, "--top-k", "0"));
    c.layers = atoi(example_option(argc, argv, "--layers", "4"));
    c.heads = atoi(example_option(argc, argv, "--heads", "4"));
    c.dim = atoi(example_option(argc, argv, "--dim", "128"));
    c.data = atoi(example_option(argc, argv, "--data", "1"));
    c.pipe = atoi(example_option(argc, argv, "--pipe", "1"));
    c.tensor = atoi(example_option(argc, argv, "--tensor", "1"));
    c.context = atoi(example_option(argc, argv, "--context", "64"));
    c.vocab = tokens ? atoi(example_option(argc, argv, "--vocab", "50257")) : 256;
    if (c.context < 2 || c.context > 1024 || c.vocab < 2 || size < 1) {
        fprintf(stderr, "gpt: --context must be 2 to 1024, --vocab 2 or more, --batch 1 or more\n");
        return 1;
    }
    if (tokens && prompt) {
        fprintf(stderr, "gpt: --prompt is a text, --tokens are numbers: leave one of them out\n");
        return 1;
    }
    if (load) {
        if (c.data * c.pipe * c.tensor > 1) {
            fprintf(stderr, "gpt: --load is for one process: without --data, --pipe and --tensor\n");
            return 1;
        }
        if (!look_into(load, &c, &strip, &more)) return dt_check("gpt");
        c.loaded = true;
        c.heads = atoi(example_option(argc, argv, "--heads", "0"));
        if (c.heads <= 0) c.heads = heads_beside(load, c.dim >= 64 ? (int)(c.dim / 64) : 1);
        if (c.heads < 1 || c.dim % c.heads || c.context > c.positions) {
            fprintf(stderr,
                    "gpt: %s has %lld columns and %lld positions: --heads %d must divide the columns, --context %lld is at "
                    "most the positions\n",
                    load, (long long)c.dim, (long long)c.positions, c.heads, (long long)c.context);
            return 1;
        }
        beside(load, "tokenizer.json", tokenizer, sizeof tokenizer);
        if (!tokens) c.pairs = bpe_open(example_option(argc, argv, "--tokenizer", tokenizer));
        if (c.pairs && bpe_vocab(c.pairs) > c.vocab)
            dt_fail(DT_ERR_ARG, "the tokenizer has %lld tokens, the model %lld: they do not belong together",
                    (long long)bpe_vocab(c.pairs), (long long)c.vocab);
        if (dt_error()) {
            bpe_free(c.pairs);
            return dt_check("gpt");
        }
    }
    if (c.pipe > 1 && (c.layers < c.pipe || size % c.pipe)) {
        fprintf(stderr, "gpt: --pipe %d needs as many --layers, and a --batch that is a multiple of it\n", c.pipe);
        return 1;
    }
    bool     many = c.data * c.pipe * c.tensor > 1;
    dt_comm *comm = many ? example_comm(argc, argv) : NULL;
    int      rank = comm ? dt_comm_rank(comm) : 0;
    if (many && !comm) return 1;
    dt_grid *grid = comm ? dt_grid_new(comm, .data = c.data, .pipe = c.pipe, .tensor = c.tensor) : NULL;
    /* an item is a window of --context tokens; windows do not overlap */
    bool        reads = steps > 0 || !load; /* a loaded model may write at once */
    dt_dataset *all = !reads    ? NULL
                      : tokens  ? dt_tokens_open(tokens, .length = c.context, .nbytes = 2, .vocab = c.vocab)
                      : c.pairs ? pair_windows(c.pairs, text, c.context)
                                : dt_tokens_open(text, .length = c.context, .nbytes = 1);
    int64_t     n = all ? dt_dataset_len(all) : 0, last = (n + 9) / 10;
    if (n == 1)
        dt_fail(DT_ERR_ARG, "the text has one window of %lld tokens, expected two or more; use a longer text or a smaller "
                            "--context", (long long)c.context);
    dt_dataset *train = all ? dt_dataset_range(all, 0, n - last) : NULL,
               *held = all ? dt_dataset_range(all, n - last, last) : NULL;
    dt_device  *dev = example_device(argc, argv, rank, rank);
    dt_loader  *in = !all ? NULL
                          : dt_loader_new(train, .batch = size, .shuffle = true, .drop_last = many, .seed = 1,
                                          .rank = dt_grid_rank(grid, DT_AXIS_DATA), .world = dt_grid_size(grid, DT_AXIS_DATA),
                                          .workers = workers, .device = dev);
    dt_loader  *exam = !all ? NULL
                            : dt_loader_new(held, .batch = size, .drop_last = many, .rank = dt_grid_rank(grid, DT_AXIS_DATA),
                                            .world = dt_grid_size(grid, DT_AXIS_DATA), .workers = workers, .device = dev);

    dt_model     *m = dt_model_new(.seed = 1, .device = dev);
    if (load) dt_model_load(m, load, .no_strict = more, .strip = strip);
    dt_optimizer *opt =
        dt_adamw(m, .lr = atof(example_option(argc, argv, "--lr", "0.003")), .weight_decay = 0.1, .clip_norm = 1);
    dt_optimizer_add_group(opt, "*bias|*ln_*|wte.*|wpe.*", .weight_decay = DT_ZERO);
    dt_amp        *amp = level ? dt_amp_new(m, .level = level) : NULL;
    dt_pipeline   *line = grid ? dt_hybrid_new(m, grid, .amp = amp) : NULL;
    dt_scheduler   *s = dt_cosine_annealing_lr(opt, .t_max = steps > 50 ? steps - 50 : 1);
    dt_warmup(s, .steps = 50, .start = 0.02);
    dt_checkpoint *k = dir ? dt_checkpoint_new(dir, .model = m, .optimizer = opt, .scheduler = s, .amp = amp,
                                               .every_steps = 100, .signals = true) : NULL;
    if (k && in) dt_loader_checkpoint(in, k);
    if (k && dt_checkpoint_resume(k, &epoch, &step) > 0 && !rank)
        fprintf(stderr, "resuming from step %lld in %s\n", (long long)step, dir);
    dt_progress *p = dt_progress_new(.epochs = 1, .steps = steps, .unit = "tokens", .quiet = rank > 0,
                                     .csv = rank ? NULL : example_option(argc, argv, "--csv", NULL),
                                     .svg = rank ? NULL : example_option(argc, argv, "--svg", NULL), .start_step = step);

    while (step < steps && !stop && !dt_error()) /* as many epochs as --steps needs */
        for (dt_batch b; step < steps && !stop && dt_loader_next(in, &b); ) {
            dt_tensor *loss = line ? NULL : loss_of(m, b.x, b.y, &c);
            double     value = 0;
            if (line)
                dt_pipeline_backward(line, loss_of, &c, b.x, b.y, &value);
            else if (amp)
                dt_amp_backward(amp, loss);
            else
                dt_backward(loss);
            dt_progress_step(p, line ? value : dt_item(loss), .items = (double)(b.n * c.context * c.data),
                             .lr = dt_optimizer_lr(opt, 0), .scale = amp ? dt_amp_scale(amp, 0) : 0);
            dt_step(opt);
            dt_scheduler_step(s);
            step++;
            if (k) stop = dt_checkpoint_tick(k, dt_loader_epoch(in), step);
        }
    if (k && in) dt_checkpoint_finish(k, dt_loader_epoch(in), step);
    dt_progress_free(p);
    char report[256];
    if (!dt_error() && !rank && in && dt_loader_report(in, 0, report, sizeof report)) fprintf(stderr, "%s\n", report);
    double rest = in ? held_out(m, line, exam, &c) : 0;
    if (!dt_error() && line && !rank)
        printf("%lld parameters, data %d x pipe %d x tensor %d, loss %.4f on the held-out data\n",
               (long long)dt_model_numel(m, false), c.data, c.pipe, c.tensor, rest);
    int64_t *window = (int64_t *)malloc((size_t)(c.context + c.positions + 1) * sizeof *window);
    if (!dt_error() && !line && window) {
        int     most = atoi(example_option(argc, argv, "--sample", load ? "100" : "400"));
        int64_t len = begin_with(&c, prompt, held, window);
        if (in) printf("%lld parameters, loss %.4f on the held-out data. Sample:\n", (long long)dt_model_numel(m, false), rest);
        if (prompt && !dt_error()) show_tokens(&c, window, len, bytes);
        if (!dt_error()) sample(m, &c, window, len, most, bytes);
    }
    free(window);
    if (save && !rank && !dt_error() && dt_model_save(m, save) == DT_OK) fprintf(stderr, "saved as %s\n", save);

    dt_checkpoint_free(k);
    dt_pipeline_free(line);
    dt_scheduler_free(s);
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_loader_free(in);
    dt_loader_free(exam);
    dt_dataset_free(train);
    dt_dataset_free(held);
    dt_dataset_free(all);
    dt_grid_free(grid);
    bpe_free(c.pairs);
    if (comm) dt_comm_free(comm);
    return dt_check("gpt");
}
int main(int argc, char **argv)
{
    example_args a = { argc, argv, NULL };
    int          done = example_options(argc, argv, gpt_help);
    if (done >= 0) return done;
    int          n = atoi(example_option(argc, argv, "--data", "1")) * atoi(example_option(argc, argv, "--pipe", "1")) *
            atoi(example_option(argc, argv, "--tensor", "1"));
    int          rc = n > 1 ? dt_spawn(n, learn, &a) : learn(&a);
    if (rc < 0) fprintf(stderr, "gpt: %s\n", dt_comm_error(NULL));
    return rc != 0;
}
