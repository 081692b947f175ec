#define DT_IMPLEMENTATION
#include "../dt_nn.h"
