/* Made by make_train.py with PyTorch 2.15.0+cu132: torch.amp.GradScaler('cpu').
   overflow: '1' where a gradient was infinite: the optimiser's step was skipped there, and only there.
   scale, tracker: after scaler.update() of each step. */
#ifndef DT_GOLDEN_SCALER_H
#define DT_GOLDEN_SCALER_H

static const double golden_scaler_0[20] = {
    65536, 65536, 65536, 32768, 16384, 8192, 8192, 8192, 8192, 8192, 8192, 8192, 8192, 8192, 8192, 8192, 8192, 8192,
    8192, 8192,
};
static const int golden_scaler_tracker_0[20] = {
    1, 2, 3, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
};
static const double golden_scaler_1[40] = {
    65536, 65536, 65536, 65536, 131072, 131072, 131072, 65536, 32768, 32768, 32768, 32768, 32768, 65536, 32768, 32768,
    32768, 32768, 32768, 65536, 65536, 65536, 65536, 65536, 131072, 65536, 32768, 16384, 8192, 8192, 8192, 8192, 8192,
    16384, 16384, 16384, 16384, 16384, 32768, 32768,
};
static const int golden_scaler_tracker_1[40] = {
    1, 2, 3, 4, 0, 1, 2, 0, 0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4,
    0, 1,
};
static const double golden_scaler_2[16] = {
    2048, 4096, 8192, 4096, 8192, 16384, 32768, 65536, 32768, 16384, 32768, 65536, 131072, 65536, 32768, 16384,
};
static const int golden_scaler_tracker_2[16] = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
};
static const double golden_scaler_3[30] = {
    1000, 1000, 1500, 1500, 1500, 2250, 1575, 1575, 1575, 2362.5, 2362.5, 1653.75, 1653.75, 1653.75, 2480.625,
    2480.625, 2480.625, 3720.9375, 3720.9375, 3720.9375, 2604.65625, 1823.2594, 1823.2594, 1823.2594, 2734.88916,
    2734.88916, 2734.88916, 4102.33398, 4102.33398, 4102.33398,
};
static const int golden_scaler_tracker_3[30] = {
    1, 2, 0, 1, 2, 0, 0, 1, 2, 0, 1, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 1, 2, 0, 1, 2, 0, 1, 2,
};
static const double golden_scaler_4[12] = {
    8.50705917e+37, 1.70141183e+38, 1.70141183e+38, 1.70141183e+38, 1.70141183e+38, 1.70141183e+38, 1.70141183e+38,
    8.50705917e+37, 1.70141183e+38, 1.70141183e+38, 1.70141183e+38, 1.70141183e+38,
};
static const int golden_scaler_tracker_4[12] = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
};
static const double golden_scaler_5[20] = {
    2, 1, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625, 0.001953125, 0.0009765625, 0.0009765625,
    0.001953125, 0.001953125, 0.00390625, 0.00390625, 0.0078125, 0.0078125, 0.015625,
};
static const int golden_scaler_tracker_5[20] = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0,
};
static const double golden_scaler_6[32] = {
    8, 8, 8, 4, 4, 4, 4, 2, 2, 2, 2, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4, 8, 8, 8, 8, 4, 4, 4, 4, 8,
};
static const int golden_scaler_tracker_6[32] = {
    1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0,
};

typedef struct golden_scaler_case {
    double        init_scale, growth_factor, backoff_factor;
    int           growth_interval;
    const char   *overflow;
    const double *scale;
    const int    *tracker; /* steps since it changed */
} golden_scaler_case;
static const golden_scaler_case golden_scaler[] = {
    { 65536, 2.0, 0.5, 2000,
      "00011100000000000000",
      golden_scaler_0, golden_scaler_tracker_0 },
    { 65536, 2.0, 0.5, 5,
      "0000000110000010000000000111100000000000",
      golden_scaler_1, golden_scaler_tracker_1 },
    { 1024, 2.0, 0.5, 1,
      "0001000011000111",
      golden_scaler_2, golden_scaler_tracker_2 },
    { 1000, 1.5, 0.7, 3,
      "000000100001000000001100000000",
      golden_scaler_3, golden_scaler_tracker_3 },
    { 4.25352959e+37, 2.0, 0.5, 1,
      "000000010000",
      golden_scaler_4, golden_scaler_tracker_4 },
    { 4, 2.0, 0.5, 2,
      "11111111111100000000",
      golden_scaler_5, golden_scaler_tracker_5 },
    { 8, 2.0, 0.5, 4,
      "00010001000100000000000000010000",
      golden_scaler_6, golden_scaler_tracker_6 },
};
#endif
