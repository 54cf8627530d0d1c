// A whole Weaver tree in one call, on one thread: prefix, node batches, candidate pools, frontier.
//
// Covers a one-layer v1 Weaver (learned positions, GELU) in fp32. With one layer a node's keys and values depend on
// its token and depth alone, so the prefix needs no attention and the last batch, which nothing expands, no work.
// Built without fast-math's finite-only assumption: -inf marks candidates that cannot be drafted.
// Matrices are stored [in, out], so that every inner loop runs along contiguous outputs.

#include <algorithm>
#include <queue>
#include <vector>

#include "lanes.h"

namespace {

#ifdef __AVX512F__
constexpr int TILE = 4;
#else
constexpr int TILE = 2;
#endif
constexpr float NORM_EPS = 1e-6f;

struct Affine {
    const float *weight, *bias;
};

}  // namespace

extern "C" struct WeaverTables {
    int64_t hidden, rank, heads, mlp, vocab, pool, children;
    Affine output_norm, proposal_in, norm_attn, qkv, o_proj, norm_mlp, fc1, fc2, out_norm;
    const float *pos_emb, *token_table, *residual_head;
};

extern "C" struct DraftInputs {
    int64_t anchor, depths, budget, width;
    const float *target_hidden, *draft_hidden, *draft_logits;
    const double* round_ms;  // [budget + 1] or null: growth never stops before the budget
};

namespace {

struct Pool {
    std::vector<int32_t> ids;
    std::vector<float> logits;
};

struct Entry {
    double score;
    int64_t index, token, parent;
    float edge;
    bool operator<(const Entry& other) const {
        return score < other.score || (score == other.score && index > other.index);
    }
};

// Exact GELU; erf by Abramowitz & Stegun 7.1.26, absolute error below 1.5e-7.
inline float gelu(float x) {
    const float a = std::fabs(x) * 0.70710678f;
    const float t = 1.f / (1.f + 0.3275911f * a);
    const float p = (((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f;
    const float erf = 1.f - p * t * fast_exp(-a * a);
    return 0.5f * x * (1.f + (x < 0.f ? -erf : erf));
}

void norm(const float* x, int64_t n, Affine by, float* y) {
    const float scale = 1.f / std::sqrt(dot(x, x, n) / n + NORM_EPS);
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * scale * by.weight[i] + by.bias[i];
}

template <int ROWS, int VECS>
inline void tile(const float* x, int64_t in, const float* w, int64_t out, const float* bias, float* y) {
    Lanes acc[ROWS][VECS];
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECS; ++v) acc[r][v] = bias ? load(bias + v * LANES) : Lanes{};
    for (int64_t i = 0; i < in; ++i, w += out)
        for (int v = 0; v < VECS; ++v) {
            const Lanes row = load(w + v * LANES);
            for (int r = 0; r < ROWS; ++r) acc[r][v] += x[r * in + i] * row;
        }
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECS; ++v) store(y + r * out + v * LANES, acc[r][v]);
}

template <int ROWS, int VECS>
void rows(const float* x, int64_t in, Affine by, int64_t out, float* y) {
    int64_t o = 0;
    for (; o + VECS * LANES <= out; o += VECS * LANES)
        tile<ROWS, VECS>(x, in, by.weight + o, out, by.bias ? by.bias + o : nullptr, y + o);
    for (; o < out; o += LANES) tile<ROWS, 1>(x, in, by.weight + o, out, by.bias ? by.bias + o : nullptr, y + o);
}

// y [n, out] = x [n, in] @ weight [in, out] + bias; out is a multiple of LANES.
void linear(const float* x, int64_t n, int64_t in, Affine by, int64_t out, float* y) {
    int64_t r = 0;
    for (; r + 4 <= n; r += 4) rows<4, TILE>(x + r * in, in, by, out, y + r * out);
    for (; r + 2 <= n; r += 2) rows<2, 2 * TILE>(x + r * in, in, by, out, y + r * out);
    for (; r < n; ++r) rows<1, 2 * TILE>(x + r * in, in, by, out, y + r * out);
}

// Integers in the order of the floats; both zeros are one value.
inline int32_t ordered(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits < 0 ? (bits == INT32_MIN ? 0 : bits ^ 0x7fffffff) : bits;
}

// The `size` best of logits [vocab] by (logit descending, id ascending), listed by id.
void select_pool(const float* logits, int64_t vocab, int64_t size, std::vector<int32_t>& keys, Pool& pool) {
    keys.resize(vocab);
    for (int64_t i = 0; i < vocab; ++i) keys[i] = ordered(logits[i]);
    int64_t low = *std::min_element(keys.begin(), keys.end()), high = *std::max_element(keys.begin(), keys.end());
    while (low < high) {  // the largest key that at least `size` entries reach
        const int64_t middle = low + (high - low + 1) / 2;
        const int32_t bound = static_cast<int32_t>(middle);
        int32_t reached = 0;
        for (int64_t i = 0; i < vocab; ++i) reached += keys[i] >= bound;
        if (reached >= size) low = middle; else high = middle - 1;
        if (reached == size) break;
    }
    pool.ids.reserve(size), pool.logits.reserve(size);
    int32_t above = 0;
    for (int64_t i = 0; i < vocab; ++i) above += keys[i] > low;
    int64_t ties = size - above;
    for (int64_t i = 0; i < vocab; ++i)
        if (keys[i] > low || (keys[i] == low && ties-- > 0)) {
            pool.ids.push_back(static_cast<int32_t>(i));
            pool.logits.push_back(logits[i]);
        }
}

class Growth {
  public:
    Growth(const WeaverTables& tables, const DraftInputs& inputs, int64_t* tokens, int64_t* parents, float* edges)
        : t(tables), in(inputs), tokens(tokens), parents(parents), edges(edges), prefix(inputs.depths + 1),
          depths(inputs.budget + 1), scores(inputs.budget + 1), pools(inputs.depths),
          keys((prefix + inputs.budget + 1) * t.rank), values(keys.size()) {}

    int64_t grow() {
        tokens[0] = in.anchor, parents[0] = -1, edges[0] = 0.f;
        int64_t size = 1;
        const int64_t calls = (in.budget + in.width - 1) / in.width;
        std::vector<int64_t> batch{0};
        if (calls) write_prefix();
        double emitted = 1;
        for (int64_t call = 1; call <= calls; ++call) {
            expand(batch);
            const int64_t before = size;
            const int64_t end = call < calls ? size + in.width : in.budget + 1;
            batch.clear();
            for (; size < end && !frontier.empty(); ++size) {
                place(size, frontier.top());
                frontier.pop();
                if (depths[size] < in.depths) batch.push_back(size);
            }
            if (in.round_ms && !pays(before, size, emitted)) return before;
        }
        return size;
    }

  private:
    const WeaverTables& t;
    const DraftInputs& in;
    int64_t *tokens, *parents;
    float* edges;
    int64_t prefix, entries = 0;
    std::vector<int64_t> depths;
    std::vector<double> scores;
    std::vector<Pool> pools;
    std::vector<float> keys, values;  // rows: prefix, then one per node slot
    std::priority_queue<Entry> frontier;
    std::vector<float> x, n, qkv, attended, inner, logits, weights;
    std::vector<int64_t> seen;
    std::vector<int32_t> sort_keys;

    // Whether expected tokens per millisecond increase with the nodes from `before` on; `emitted` counts them then.
    bool pays(int64_t before, int64_t size, double& emitted) const {
        double more = emitted;
        for (int64_t i = before; i < size; ++i) more += std::exp(scores[i]);
        if (more / in.round_ms[size - 1] <= emitted / in.round_ms[before - 1]) return false;
        emitted = more;
        return true;
    }

    void place(int64_t slot, const Entry& entry) {
        tokens[slot] = entry.token, parents[slot] = entry.parent, edges[slot] = entry.edge;
        depths[slot] = depths[entry.parent] + 1, scores[slot] = entry.score;
    }

    // Normalises residual rows x [count, rank] and projects them; keys and values of row i go to cache row target(i).
    template <typename Target>
    void project(int64_t count, Target target) {
        n.resize(count * t.rank), qkv.resize(count * 3 * t.rank);
        for (int64_t i = 0; i < count; ++i) norm(&x[i * t.rank], t.rank, t.norm_attn, &n[i * t.rank]);
        linear(n.data(), count, t.rank, t.qkv, 3 * t.rank, qkv.data());
        for (int64_t i = 0; i < count; ++i) {
            const float* k = &qkv[(3 * i + 1) * t.rank];
            std::copy(k, k + t.rank, &keys[target(i) * t.rank]);
            std::copy(k + t.rank, k + 2 * t.rank, &values[target(i) * t.rank]);
        }
    }

    void write_prefix() {
        std::vector<float> hidden(prefix * t.hidden);
        norm(in.target_hidden, t.hidden, t.output_norm, hidden.data());
        for (int64_t i = 1; i < prefix; ++i)
            norm(in.draft_hidden + (i - 1) * t.hidden, t.hidden, t.output_norm, &hidden[i * t.hidden]);
        x.resize(prefix * t.rank);
        linear(hidden.data(), prefix, t.hidden, t.proposal_in, t.rank, x.data());
        for (int64_t i = 0; i < (prefix - 1) * t.rank; ++i) x[t.rank + i] += t.pos_emb[i];
        project(prefix, [](int64_t i) { return i; });
    }

    void attend(int64_t slot, const float* query, float* y) {
        seen.clear();
        for (int64_t i = 0; i < prefix; ++i) seen.push_back(i);
        for (int64_t a = slot; a >= 0; a = parents[a]) seen.push_back(prefix + a);
        const int64_t dim = t.rank / t.heads, count = seen.size();
        const float scale = 1.f / std::sqrt(static_cast<float>(dim));
        weights.resize(count);
        std::fill(y, y + t.rank, 0.f);
        for (int64_t h = 0; h < t.heads; ++h, query += dim, y += dim) {
            float best = NEG_INF, total = 0.f;
            for (int64_t i = 0; i < count; ++i) {
                weights[i] = scale * dot(query, &keys[seen[i] * t.rank + h * dim], dim);
                best = std::max(best, weights[i]);
            }
            for (int64_t i = 0; i < count; ++i) total += weights[i] = fast_exp(weights[i] - best);
            for (int64_t i = 0; i < count; ++i) {
                const float weight = weights[i] / total;
                const float* value = &values[seen[i] * t.rank + h * dim];
                for (int64_t j = 0; j < dim; ++j) y[j] += weight * value[j];
            }
        }
    }

    // One Weaver call: all nodes of the batch share each pass over the weights.
    void expand(const std::vector<int64_t>& batch) {
        const int64_t count = batch.size(), rank = t.rank;
        x.resize(count * rank), attended.resize(count * rank), inner.resize(count * std::max(t.mlp, rank));
        for (int64_t i = 0; i < count; ++i) {
            const float* token = t.token_table + tokens[batch[i]] * rank;
            const float* position = t.pos_emb + depths[batch[i]] * rank;
            for (int64_t j = 0; j < rank; ++j) x[i * rank + j] = token[j] + position[j];
        }
        project(count, [&](int64_t i) { return prefix + batch[i]; });
        for (int64_t i = 0; i < count; ++i) attend(batch[i], &qkv[3 * i * rank], &attended[i * rank]);
        linear(attended.data(), count, rank, t.o_proj, rank, inner.data());
        for (int64_t i = 0; i < count * rank; ++i) x[i] += inner[i];
        for (int64_t i = 0; i < count; ++i) norm(&x[i * rank], rank, t.norm_mlp, &n[i * rank]);
        linear(n.data(), count, rank, t.fc1, t.mlp, inner.data());
        for (int64_t i = 0; i < count * t.mlp; ++i) inner[i] = gelu(inner[i]);
        linear(inner.data(), count, t.mlp, t.fc2, rank, attended.data());
        for (int64_t i = 0; i < count * rank; ++i) x[i] += attended[i];
        for (int64_t i = 0; i < count; ++i) {
            norm(&x[i * rank], rank, t.out_norm, &n[i * rank]);
            publish_children(batch[i], &n[i * rank]);
        }
    }

    const Pool& pool_at(int64_t depth) {
        Pool& pool = pools[depth];
        if (pool.ids.empty()) select_pool(in.draft_logits + depth * t.vocab, t.vocab, t.pool, sort_keys, pool);
        return pool;
    }

    void publish_children(int64_t slot, const float* query) {
        const Pool& pool = pool_at(depths[slot]);
        logits.resize(t.pool);
        for (int64_t c = 0; c < t.pool; ++c)
            logits[c] = pool.logits[c] + dot(t.residual_head + pool.ids[c] * t.rank, query, t.rank);
        const float best = *std::max_element(logits.begin(), logits.end());
        float total = 0.f;
        for (int64_t c = 0; c < t.pool; ++c) total += fast_exp(logits[c] - best);
        const float normaliser = best + std::log(total);

        std::vector<int32_t> top;  // best first; ties go to the better marginal, then to the lower id
        auto better = [&](int32_t a, int32_t b) {
            if (logits[a] != logits[b]) return logits[a] > logits[b];
            return pool.logits[a] != pool.logits[b] ? pool.logits[a] > pool.logits[b] : a < b;
        };
        for (int32_t c = 0; c < t.pool; ++c) {
            const bool full = static_cast<int64_t>(top.size()) == t.children;
            if (full && !better(c, top.back())) continue;
            if (full) top.pop_back();
            top.insert(std::upper_bound(top.begin(), top.end(), c, better), c);
        }
        for (int32_t c : top) {
            const float edge = std::min(logits[c] - normaliser, 0.f);
            if (std::isfinite(edge)) frontier.push({scores[slot] + edge, entries++, pool.ids[c], slot, edge});
        }
    }
};

}  // namespace

// Fills tokens, parents and edges [budget + 1]; rows beyond the returned size are padding under the anchor.
extern "C" int64_t weaver_tree(const WeaverTables* tables, const DraftInputs* inputs, int64_t* tokens, int64_t* parents,
                               float* edges) {
    const int64_t size = Growth(*tables, *inputs, tokens, parents, edges).grow();
    for (int64_t i = size; i <= inputs->budget; ++i) tokens[i] = 0, parents[i] = 0, edges[i] = NEG_INF;
    return size;
}
