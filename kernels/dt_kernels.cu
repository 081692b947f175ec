/* dt_kernels.cu: all kernels of dt's CUDA backend in one file, for a simple build: nvcc -c dt_kernels.cu. Each of the
   included files also compiles by itself. */
#include "device.cu"
#include "elementwise.cu"
#include "reduce.cu"
#include "softmax.cu"
#include "loss.cu"
#include "indexing.cu"
#include "dropout.cu"
#include "norm.cu"
#include "pool.cu"
#include "attention.cu"
#include "rnn.cu"
#include "optim.cu"
