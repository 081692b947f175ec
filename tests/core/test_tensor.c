/* Tensors: making, views, moving, printing, memory. */
#include "dt_test.h"

#include <stdint.h>
#include <string.h>

static void text_of(dt_tensor *t, char *buf, size_t n) { dt_to_string(t, buf, n); }

UTEST(tensor, make_and_ask)
{
    dt_tensor *t = dt_zeros(DT_SHAPE(2, 3, 4), .dtype = DT_F16);
    EXPECT_EQ(3, dt_ndim(t));
    EXPECT_EQ(24, dt_numel(t));
    EXPECT_EQ((size_t)48, dt_nbytes(t));
    EXPECT_EQ(4, dt_size(t, -1));
    EXPECT_EQ(12, dt_stride(t, 0));
    EXPECT_EQ((int)DT_F16, (int)dt_dtype_of(t));
    EXPECT_TRUE(dt_is_contiguous(t));
    dt_tensor *s = dt_full(2.5, DT_SCALAR);
    EXPECT_EQ(0, dt_ndim(s));
    EXPECT_EQ(2.5, dt_item(s));
    dt_tensor *e = dt_ones(DT_SHAPE(3, 0));
    EXPECT_EQ(0, dt_numel(e));
    EXPECT_EQ(0.0, dt_item(dt_sum(e)));
    dt_end();
    EXPECT_EQ(0, dt_check("test"));
}

UTEST(tensor, arange_in_every_dtype)
{
    for (int d = 0; d < DT_DTYPE_COUNT; d++) {
        dt_tensor *t = dt_arange(1, 8, 2, .dtype = (dt_dtype)d);
        ASSERT_EQ(4, dt_numel(t));
        for (int i = 0; i < 4; i++) EXPECT_EQ(1.0 + 2 * i, dt_item(dt_select(t, 0, i)));
    }
    EXPECT_ERROR(dt_arange(0, 1, 0), "dt_arange");
    dt_end();
}

UTEST(tensor, views_share_memory)
{
    dt_tensor *t = dt_reshape(dt_arange(0, 24, 1), DT_SHAPE(2, 3, 4));
    dt_tensor *p = dt_permute(t, DT_SHAPE(2, 0, 1));
    EXPECT_EQ(4, dt_size(p, 0));
    EXPECT_EQ(1, dt_stride(p, 0));
    EXPECT_FALSE(dt_is_contiguous(p));
    EXPECT_EQ(1 * 12 + 2 * 4 + 3.0, dt_item(dt_select(dt_select(dt_select(p, 0, 3), 0, 1), 0, 2)));
    dt_fill(dt_narrow(t, 2, 1, 2), -1);
    float v[24];
    dt_copy_out(t, v, sizeof v);
    for (int i = 0; i < 24; i++) EXPECT_TRUE(v[i] == (i % 4 == 1 || i % 4 == 2 ? -1.0f : (float)i));
    dt_tensor *x = dt_expand(dt_arange(0, 3, 1), DT_SHAPE(2, 3));
    EXPECT_EQ(0, dt_stride(x, 0));
    EXPECT_ERROR(dt_fill(x, 0), "expanded");
    EXPECT_EQ(24, dt_size(dt_reshape(p, DT_SHAPE(-1)), 0)); /* a copy: the strides do not allow a view */
    EXPECT_EQ(2, dt_ndim(dt_squeeze(dt_unsqueeze(x, 1), 1)));
    dt_end();
    EXPECT_EQ(0, dt_check("test"));
}

UTEST(tensor, reshape_of_a_strided_view_without_a_copy)
{
    dt_tensor *t = dt_reshape(dt_arange(0, 60, 1), DT_SHAPE(3, 4, 5));
    dt_tensor *n = dt_narrow(t, 0, 1, 2);                 /* rows 20.. */
    dt_tensor *r = dt_reshape(n, DT_SHAPE(2, 2, 2, 5));
    dt_fill(r, 9);                                        /* shows in t if r is a view */
    EXPECT_EQ(9.0, dt_item(dt_select(dt_select(dt_select(t, 0, 1), 0, 0), 0, 0)));
    dt_tensor *c = dt_narrow(t, 2, 0, 2);                 /* columns: rows are not evenly spaced over both */
    dt_tensor *d = dt_reshape(c, DT_SHAPE(12, 2));        /* but 3x4 rows are: a view */
    dt_fill(d, 5);
    EXPECT_EQ(5.0, dt_item(dt_select(dt_select(dt_select(t, 0, 2), 0, 3), 0, 1)));
    dt_tensor *f = dt_reshape(c, DT_SHAPE(24));           /* a copy */
    dt_fill(f, 1);
    EXPECT_EQ(5.0, dt_item(dt_select(dt_select(dt_select(t, 0, 0), 0, 0), 0, 0)));
    dt_end();
    EXPECT_EQ(0, dt_check("test"));
}

UTEST(tensor, copies_convert_and_broadcast)
{
    const float in[4] = { 1.5f, -2.5f, 3.0f, 65536.0f };
    dt_tensor  *t = dt_from(in, DT_SHAPE(4));
    EXPECT_EQ(1.0, dt_item(dt_select(dt_cast(t, DT_I32), 0, 0)));
    EXPECT_EQ(-2.0, dt_item(dt_select(dt_cast(t, DT_I64), 0, 1)));
    EXPECT_TRUE(dt_item(dt_select(dt_cast(t, DT_F16), 0, 3)) > 1e30); /* beyond f16: infinity */
    EXPECT_EQ(65536.0, dt_item(dt_select(dt_cast(t, DT_BF16), 0, 3)));
    EXPECT_TRUE(dt_cast(t, DT_F32) == t);
    dt_tensor *m = dt_zeros(DT_SHAPE(3, 4), .dtype = DT_BF16);
    EXPECT_EQ(DT_OK, dt_copy(m, t));
    EXPECT_EQ(-2.5, dt_item(dt_select(dt_select(m, 0, 2), 0, 1)));
    EXPECT_ERROR(dt_copy(t, m), "broadcast");
    dt_tensor *c = dt_transpose(dt_zeros(DT_SHAPE(2, 2)), 0, 1);
    EXPECT_EQ(DT_OK, dt_copy_in(c, in, sizeof in)); /* row-major, whatever the strides */
    EXPECT_EQ(-2.5, dt_item(dt_select(dt_select(c, 0, 0), 0, 1)));
    EXPECT_ERROR(dt_copy_in(c, in, 8), "nbytes is 8, but the tensor, f32 (2, 2), has 16 bytes");
    dt_end();
}

UTEST(tensor, a_copy_onto_itself_shifted_is_right)
{
    dt_tensor *t = dt_arange(0, 1000, 1);
    dt_copy(dt_narrow(t, 0, 1, 999), dt_narrow(t, 0, 0, 999));
    EXPECT_EQ(0.0, dt_item(dt_select(t, 0, 1)));
    EXPECT_EQ(500.0, dt_item(dt_select(t, 0, 501)));
    EXPECT_EQ(998.0, dt_item(dt_select(t, 0, 999)));
    dt_end();
    EXPECT_EQ(0, dt_check("test"));
}

UTEST(tensor, prints_like_numpy)
{
    char buf[4096];
    text_of(dt_reshape(dt_arange(0, 6, 1), DT_SHAPE(2, 3)), buf, sizeof buf);
    EXPECT_STREQ("[[0. 1. 2.]\n [3. 4. 5.]]", buf);
    const float v[3] = { 0.5f, -1.25f, 10 };
    text_of(dt_from(v, DT_SHAPE(3)), buf, sizeof buf);
    EXPECT_STREQ("[ 0.5000 -1.2500 10.0000]", buf);
    text_of(dt_reshape(dt_arange(0, 4, 1, .dtype = DT_I64), DT_SHAPE(2, 1, 2)), buf, sizeof buf);
    EXPECT_STREQ("[[[0 1]]\n\n [[2 3]]]", buf);
    text_of(dt_full(3, DT_SCALAR), buf, sizeof buf);
    EXPECT_STREQ("3.", buf);
    text_of(dt_zeros(DT_SHAPE(0)), buf, sizeof buf);
    EXPECT_STREQ("[]", buf);
    text_of(dt_arange(0, 2000, 1, .dtype = DT_I32), buf, sizeof buf);
    EXPECT_STREQ("[   0    1    2 ... 1997 1998 1999]", buf);
    const float odd[3] = { __builtin_nanf(""), __builtin_inff(), -1 };
    text_of(dt_from(odd, DT_SHAPE(3)), buf, sizeof buf);
    EXPECT_STREQ("[nan inf -1.]", buf);
    char   tiny[8];
    size_t need = dt_to_string(dt_arange(0, 6, 1), tiny, sizeof tiny); /* cut, terminated, true length told */
    EXPECT_EQ((size_t)19, need);
    EXPECT_STREQ("[0. 1. ", tiny);
    dt_end();
    EXPECT_EQ(0, dt_check("test"));
}

UTEST(tensor, keep_free_and_end)
{
    int64_t    live = dt_stats().live_tensors;
    dt_tensor *a = dt_keep(dt_ones(DT_SHAPE(3))), *v = dt_keep(dt_narrow(a, 0, 1, 1));
    dt_ones(DT_SHAPE(100));
    dt_end();
    EXPECT_EQ(live + 2, dt_stats().live_tensors);
    dt_free(a); /* the view keeps the memory */
    EXPECT_EQ(1.0, dt_item(v));
    dt_free(v);
    EXPECT_EQ(live, dt_stats().live_tensors);
    dt_tensor *early = dt_ones(DT_SHAPE(1000));
    size_t     bytes = dt_stats().live_bytes;
    dt_free(early);
    EXPECT_LT(dt_stats().live_bytes, bytes);
    dt_end();
    EXPECT_EQ(0, dt_check("test"));
}

UTEST(tensor, memory_is_reused_and_given_back)
{
    for (int i = 0; i < 5; i++) {
        dt_ones(DT_SHAPE(1000, 10));
        dt_end();
    }
    int64_t allocs = dt_stats().host_allocs;
    for (int i = 0; i < 50; i++) {
        dt_add(dt_ones(DT_SHAPE(1000, 10)), dt_ones(DT_SHAPE(1000, 10)));
        if (i == 1) allocs = dt_stats().host_allocs;
        dt_end();
    }
    EXPECT_EQ(allocs, dt_stats().host_allocs);
    dt_empty_cache();
    EXPECT_EQ((size_t)0, dt_stats().cached_bytes);
}

UTEST(tensor, data_ptr_is_where_the_elements_are)
{
    float      x[6] = { 1, 2, 3, 4, 5, 6 };
    dt_tensor *t = dt_from(x, DT_SHAPE(2, 3)), *row = dt_narrow(t, 0, 1, 1), *column = dt_narrow(t, 1, 1, 1);
    float     *p = (float *)dt_data_ptr(t);
    ASSERT_TRUE(p != NULL);
    EXPECT_EQ(0, memcmp(p, x, sizeof x));
    EXPECT_TRUE(dt_data_ptr(row) == p + 3);
    p[4] = 50;
    EXPECT_EQ(64.0, dt_item(dt_sum(row)) + 4);
    EXPECT_TRUE(dt_data_ptr(column) == NULL && strstr(dt_error(), "is not contiguous; pass the result of dt_contiguous()"));
    dt_error_clear();
    EXPECT_TRUE(dt_data_ptr(dt_contiguous(column)) != NULL);
    dt_end();
}
UTEST(tensor, private_layout_is_never_seen)
{
    dt_manual_seed(5);
    dt_tensor *x = dt_normal(0, 1, DT_SHAPE(2, 3, 5, 4)), *w = dt_normal(0, 1, DT_SHAPE(6, 3, 1, 1));
    dt_tensor *y = dt_op_conv2d(x, w, NULL);
    float      a[240], b[240];
    dt_copy_out(y, a, sizeof a); /* row-major although the device keeps it otherwise */
    dt_tensor *n = dt_narrow(y, 1, 2, 1);
    dt_fill(dt_detach(n), 7);    /* a view shares memory with its base */
    EXPECT_EQ(5 * 4 * 6, dt_stride(y, 0));
    EXPECT_EQ(1, dt_stride(y, 3));
    dt_copy_out(y, b, sizeof b);
    for (int i = 0; i < 240; i++) EXPECT_TRUE(b[i] == (i / 20 % 6 == 2 ? 7.0f : a[i]));
    float xs[3];
    dt_copy_out(dt_select(dt_select(dt_select(x, 0, 1), 1, 2), 1, 3), xs, sizeof xs);
    float ws[3];
    dt_copy_out(dt_reshape(dt_select(w, 0, 4), DT_SHAPE(3)), ws, sizeof ws);
    EXPECT_NEAR(xs[0] * ws[0] + xs[1] * ws[1] + xs[2] * ws[2], a[((1 * 6 + 4) * 5 + 2) * 4 + 3], 1e-5);
    dt_end();
    EXPECT_EQ(0, dt_check("test"));
}

UTEST_MAIN()
