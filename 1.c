#define DT_IMPLEMENTATION
#include "dt_nn.h"
#include "dt_dist.h"
#include <stdio.h>

static dt_tensor *net(dt_model *m, dt_tensor *x)     /* the forward function is the model */
{
    dt_comm      *c   = dt_comm_init();
    x = dt_reshape(x, DT_SHAPE(-1, 1, 8, 8));
    x = dt_conv2d(m, "conv1", x, .out = 16, .kernel = 3, .pad = 1, .act = DT_ACT_RELU);
    x = dt_maxpool2d(dt_batchnorm2d(m, "bn1", x), .kernel = 2);
    return dt_linear(m, "fc", dt_flatten(x), .out = 10); /* fc.weight, fc.bias */
}

int main(void)
{
    dt_dataset   *set = dt_idx_open("data/digits/digits-images-idx3-ubyte",
        .labels = "data/digits/digits-labels-idx1-ubyte", .classes = 10);
    dt_loader    *in  = dt_loader_new(set, .batch = 25, .shuffle = true, .max_value = 16,
                                      .rank = dt_comm_rank(c), .world = dt_comm_size(c));
    dt_model     *m   = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.05, .momentum = 0.9);
    dt_ddp       *ddp = dt_ddp_new(m, c);       /* .shard = 3: ZeRO; .compress = { "auto" } */
    dt_ddp_free(ddp);
    double        last = 0;

    while (dt_loader_epoch(in) < 5 && !dt_error())
        for (dt_batch b; dt_loader_next(in, &b);) {
            dt_tensor *loss = dt_cross_entropy(net(m, b.x), b.y);
            dt_backward(loss);
            last = dt_item(loss);
            dt_step(opt);                       /* update, clear gradients, end the step */
        }
    printf("loss of the last batch: %.3f\n", last);
    dt_model_save(m, "digits.safetensors");     /* PyTorch opens it, too */
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_loader_free(in);
    dt_dataset_free(set);
    dt_comm_free(c);
    return dt_check("digits");                  /* prints dt_error(), returns 1 if a call failed */
}
