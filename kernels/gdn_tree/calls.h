// What the compiled kernels of this package are called with, and passes over columns that they share.
#pragma once

#include <algorithm>
#include <vector>

#include "lanes.h"

// What compiled.py passes: every field takes eight bytes.
struct Rows {  // strides in floats: sequence, node, head; elements of a head are contiguous
    const float* data;
    int64_t sequence, node, head;
    const float* at(int64_t b, int64_t n, int64_t h) const { return data + b * sequence + n * node + h * head; }
};

struct Verification {
    int64_t batch, nodes, heads, value_heads, key_dim, value_dim, threads;
    Rows q, k, v, g, beta;
    const float* state;  // [B, HV, K, V]
    const int64_t* parents;
    float *outputs, *pseudo_values, *states;  // [B, N, HV, V], [B, HV, N, V], [B, N, HV, K, V] or null
    double scale;
};

struct Commit {
    int64_t rows, nodes, heads, value_heads, key_dim, value_dim, threads, length;
    Rows k, v, g, beta;  // for a fold, v holds pseudo-values and beta nothing
    const int64_t* path;
    float* state;  // [rows, HV, K, V]
};

struct Convolution {
    int64_t batch, nodes, channels, threads, sequence_stride, node_stride;
    const float *inputs, *window, *weight, *bias;  // [B, N, C], [B, C, 3], [C, 4], [C] or null
    const int64_t* parents;
    float* outputs;  // [B, N, C]
};

// Vectors of columns that one pass over a row of values carries: two accumulators each have to stay in registers.
#ifdef __AVX512F__
constexpr int WIDEST = 8;
#else
constexpr int WIDEST = 2;
#endif

template <int VECTORS>
struct Width {
    static constexpr int vectors = VECTORS;
};

// Calls f(Width, column) over all columns, in passes as wide as they come.
template <int VECTORS = WIDEST, class F>
void by_columns(int64_t width, const F& f, int64_t column = 0) {
    for (; column + VECTORS * LANES <= width; column += VECTORS * LANES) f(Width<VECTORS>{}, column);
    if constexpr (VECTORS > 1) by_columns<VECTORS / 2>(width, f, column);
}
