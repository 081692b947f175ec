/* The same in C++20: options are designated initialisers, objects are owned by smart pointers, the forward is a lambda.

   Build: g++ -std=c++20 -O2 -I.. cpp.cpp -o cpp -lm -lpthread */
#define DT_IMPLEMENTATION
#include "dt_nn.h"
#include "options.h"
#include <cstdio>
#include <memory>
#include <vector>

template <auto F> struct calls {
    template <class T> void operator()(T *x) const { F(x); }
};
using model = std::unique_ptr<dt_model, calls<dt_model_free>>;
using optimizer = std::unique_ptr<dt_optimizer, calls<dt_optimizer_free>>;

int main(int argc, char **argv)
{
    static const char help[] = "cpp [options]: a net in C++20 that learns the product of two numbers\n"
                               "    --steps N     400\n";
    if (int done = example_options(argc, argv, help); done >= 0) return done;
    const int steps = atoi(example_option(argc, argv, "--steps", "400"));
    model     m(dt_model_new(.seed = 1));
    optimizer opt(dt_adamw(m.get(), .lr = 0.01));
    auto      net = [&](dt_tensor *x) {
        x = dt_linear(m.get(), "fc1", x, .out = 32, .act = DT_ACT_TANH);
        return dt_linear(m.get(), "fc2", x, .out = 1);
    };
    std::vector<double> losses;
    for (int step = 0; step < steps && !dt_error(); step++) {
        dt_tensor *x = dt_uniform(-1, 1, DT_SHAPE(64, 2));
        dt_tensor *y = dt_mul(dt_narrow(x, 1, 0, 1), dt_narrow(x, 1, 1, 1));
        dt_tensor *loss = dt_mse_loss(net(x), y);
        dt_backward(loss);
        losses.push_back(dt_item(loss));
        dt_step(opt.get());
    }
    if (losses.empty()) return dt_check("cpp") || std::printf("no steps\n") < 0;
    std::printf("the product of two numbers: loss %.4f -> %.4f\n", losses.front(), losses.back());
    return dt_check("cpp") || !(losses.back() < losses.front());
}
