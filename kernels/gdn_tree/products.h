// Inner products with the keys of ancestors, and matrix products by panels.
#pragma once

#include "calls.h"

// Rows of a matrix product that stay in registers: nodes (two rows each, key and query) times vectors of columns.
#ifdef __AVX512F__
constexpr int NODES = 6, VECS = 2;
#else
constexpr int NODES = 3, VECS = 1;
#endif

inline float sum(Lanes x) {
    float total = 0.f;
    for (int i = 0; i < LANES; ++i) total += x[i];
    return total;
}

// key . k_j and query . k_j for every listed j.
template <int CHUNKS>
void pair_dots(const float* key, const float* query, const Rows& k, int64_t b, int64_t h, const int64_t* list,
               int64_t count, float* kk, float* qk) {
    Lanes mine[CHUNKS], asked[CHUNKS];
    for (int c = 0; c < CHUNKS; ++c) mine[c] = load(key + c * LANES), asked[c] = load(query + c * LANES);
    for (int64_t at = 0; at < count; ++at) {
        const float* other = k.at(b, list[at], h);
        Lanes update{}, readout{};
        for (int c = 0; c < CHUNKS; ++c) {
            const Lanes x = load(other + c * LANES);
            update += mine[c] * x, readout += asked[c] * x;
        }
        kk[at] = sum(update), qk[at] = sum(readout);
    }
}

inline void any_pair_dots(const float* key, const float* query, const Rows& k, int64_t b, int64_t h, const int64_t* list,
                   int64_t count, int64_t dim, float* kk, float* qk) {
    switch (dim) {
        case 32: return pair_dots<2>(key, query, k, b, h, list, count, kk, qk);
        case 64: return pair_dots<4>(key, query, k, b, h, list, count, kk, qk);
        case 128: return pair_dots<8>(key, query, k, b, h, list, count, kk, qk);
    }
    for (int64_t at = 0; at < count; ++at) {
        const float* other = k.at(b, list[at], h);
        kk[at] = dot(key, other, dim), qk[at] = dot(query, other, dim);
    }
}

// out [ROWS] += a [depth, ROWS]^T @ panel [depth, VECTORS * LANES]; the caller gives a pointer per row of out.
template <int ROWS, int VECTORS>
void multiply(const float* a, const float* panel, int64_t panel_stride, int64_t depth, float* const* out) {
    Lanes acc[ROWS][VECTORS];
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) acc[r][v] = load(out[r] + v * LANES);
    for (int64_t c = 0; c < depth; ++c, a += ROWS, panel += panel_stride) {
        Lanes row[VECTORS];
        for (int v = 0; v < VECTORS; ++v) row[v] = load(panel + v * LANES);
        for (int r = 0; r < ROWS; ++r)  // a row at a time: its broadcast must not outlive its products
            for (int v = 0; v < VECTORS; ++v) acc[r][v] += a[r] * row[v];
    }
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) store(out[r] + v * LANES, acc[r][v]);
}

template <int VECTORS>
void multiply_rows(int64_t rows, const float* a, const float* panel, int64_t panel_stride, int64_t depth,
                   float* const* out) {
    switch (rows) {
        case 2: return multiply<2, VECTORS>(a, panel, panel_stride, depth, out);
        case 4: return multiply<4, VECTORS>(a, panel, panel_stride, depth, out);
        case 6: return multiply<6, VECTORS>(a, panel, panel_stride, depth, out);
#ifdef __AVX512F__
        case 8: return multiply<8, VECTORS>(a, panel, panel_stride, depth, out);
        case 10: return multiply<10, VECTORS>(a, panel, panel_stride, depth, out);
        case 12: return multiply<12, VECTORS>(a, panel, panel_stride, depth, out);
#endif
    }
}

// A matrix [depth, width] in panels of VECS * LANES columns (the last may be narrower), each of them contiguous: its
// rows as they stand would fall into few sets of the cache. One panel is used where it lies.
class Panels {
  public:
    void gather(const float* const* rows, int64_t depth, int64_t width) {
        this->depth = depth, this->width = width;
        contiguous = nullptr;
        copy.resize(depth * width);
        float* to = copy.data();
        for (int64_t column = 0; column < width; column += VECS * LANES) {
            const int64_t vectors = std::min<int64_t>(VECS, (width - column) / LANES);
            for (int64_t c = 0; c < depth; ++c)
                for (int64_t v = 0; v < vectors; ++v, to += LANES) store(to, load(rows[c] + column + v * LANES));
        }
    }

    void set(const float* matrix, int64_t depth, int64_t width) {
        if (width > VECS * LANES) {
            rows.resize(depth);
            for (int64_t c = 0; c < depth; ++c) rows[c] = matrix + c * width;
            return gather(rows.data(), depth, width);
        }
        this->depth = depth, this->width = width;
        contiguous = matrix;
    }

    // out [count] += a [depth, count]^T @ matrix; rows of out are `width` long.
    void multiply(int64_t count, const float* a, float* const* out) const {
        const float* panel = contiguous ? contiguous : copy.data();
        for (int64_t column = 0; column < width; column += VECS * LANES) {
            float* at[2 * NODES];
            for (int64_t r = 0; r < count; ++r) at[r] = out[r] + column;
            const int64_t vectors = std::min<int64_t>(VECS, (width - column) / LANES);
            if (vectors == VECS) multiply_rows<VECS>(count, a, panel, vectors * LANES, depth, at);
            else multiply_rows<1>(count, a, panel, vectors * LANES, depth, at);
            panel += depth * vectors * LANES;
        }
    }

  private:
    std::vector<float> copy;
    std::vector<const float*> rows;
    const float* contiguous = nullptr;
    int64_t depth = 0, width = 0;
};
