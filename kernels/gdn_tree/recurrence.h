// The recurrences that the solve is compared with, and the commits, which are recurrences along one path.
#pragma once

#include <utility>

#include "calls.h"

constexpr int REPLAYED = 2;  // the same in a replay, whose state is to stay in the first cache

// What one step of a recurrence reads and writes, for VECTORS * LANES columns of a state.
struct Step {
    const float *key, *query, *value;
    float decay, strength, scale;
    float *u, *output;
};

// From parent to own state: u = beta (v - e^g S^T k), output = scale S_own^T q, S_own = e^g S + k u^T.
// Without own (a leaf whose state nobody needs) the last step is left out.
template <int VECTORS>
void advance(const Step& step, int64_t K, const float* parent, int64_t parent_stride, float* own, int64_t own_stride) {
    Lanes read[VECTORS] = {}, asked[VECTORS] = {}, u[VECTORS];
    float agreement = 0.f;
    if (step.query) {
        agreement = step.scale * dot(step.query, step.key, K);
        for (int64_t c = 0; c < K; ++c)
            for (int v = 0; v < VECTORS; ++v) {
                const Lanes row = load(parent + c * parent_stride + v * LANES);
                read[v] += step.key[c] * row, asked[v] += step.query[c] * row;
            }
    } else {
        for (int64_t c = 0; c < K; ++c)
            for (int v = 0; v < VECTORS; ++v)
                read[v] += step.key[c] * load(parent + c * parent_stride + v * LANES);
    }
    for (int v = 0; v < VECTORS; ++v) {
        u[v] = step.strength * (load(step.value + v * LANES) - step.decay * read[v]);
        if (step.query) {
            store(step.u + v * LANES, u[v]);
            store(step.output + v * LANES, step.scale * step.decay * asked[v] + agreement * u[v]);
        }
    }
    if (own)
        for (int64_t c = 0; c < K; ++c)
            for (int v = 0; v < VECTORS; ++v)
                store(own + c * own_stride + v * LANES,
                      step.decay * load(parent + c * parent_stride + v * LANES) + step.key[c] * u[v]);
}

// One value head of one sequence, node after node.
class Recurrence {
  public:
    explicit Recurrence(const Verification& p) : p(p), K(p.key_dim), V(p.value_dim) {}

    // Every state is stored where it was asked for, [B, N, HV, K, V].
    void by_node(int64_t b, int64_t hv) const {
        for (int64_t i = 0; i < p.nodes; ++i) {
            const float* parent = p.parents[i] < 0 ? committed(b, hv) : stored(b, p.parents[i], hv);
            float* own = stored(b, i, hv);
            by_columns(V, [&](auto width, int64_t column) {
                advance<width.vectors>(step(b, i, hv, column), K, parent + column, V, own + column, V);
            });
        }
    }

    // One state per depth, in scratch: `order` visits the tree depth first, `slots` gives each node's depth, and
    // `needed` whether the state of a node has a reader.
    void in_scratch(int64_t b, int64_t hv, const std::vector<int64_t>& order, const std::vector<int64_t>& slots,
                    const std::vector<char>& needed, std::vector<float>& scratch) const {
        by_columns(V, [&](auto width, int64_t column) {
            scratch_columns<width.vectors>(b, hv, column, order, slots, needed, scratch);
        });
    }

  private:
    const Verification& p;
    const int64_t K, V;

    const float* committed(int64_t b, int64_t hv) const { return p.state + (b * p.value_heads + hv) * K * V; }
    float* stored(int64_t b, int64_t i, int64_t hv) const {
        return p.states + ((b * p.nodes + i) * p.value_heads + hv) * K * V;
    }

    Step step(int64_t b, int64_t i, int64_t hv, int64_t column) const {
        const int64_t h = hv / (p.value_heads / p.heads);
        return {p.k.at(b, i, h),
                p.q.at(b, i, h),
                p.v.at(b, i, hv) + column,
                fast_exp(*p.g.at(b, i, hv)),
                *p.beta.at(b, i, hv),
                static_cast<float>(p.scale),
                p.pseudo_values + ((b * p.value_heads + hv) * p.nodes + i) * V + column,
                p.outputs + ((b * p.nodes + i) * p.value_heads + hv) * V + column};
    }

    template <int VECTORS>
    void scratch_columns(int64_t b, int64_t hv, int64_t column, const std::vector<int64_t>& order,
                         const std::vector<int64_t>& slots, const std::vector<char>& needed,
                         std::vector<float>& scratch) const {
        const int64_t width = VECTORS * LANES, size = K * width;
        const float* from = committed(b, hv) + column;
        for (int64_t c = 0; c < K; ++c)
            for (int v = 0; v < VECTORS; ++v) store(&scratch[c * width + v * LANES], load(from + c * V + v * LANES));
        for (size_t at = 0; at < order.size(); ++at) {
            float* parent = &scratch[slots[at] * size];
            advance<VECTORS>(step(b, order[at], hv, column), K, parent, width, needed[at] ? parent + size : nullptr,
                             width);
        }
    }
};

// Nodes depth first, as a recurrence in scratch visits them.
struct DepthFirst {
    std::vector<int64_t> order, slots;
    std::vector<char> needed;
    int64_t depth = 0;

    DepthFirst(const int64_t* parents, int64_t nodes) {
        std::vector<std::vector<int64_t>> children(nodes);
        for (int64_t i = nodes - 1; i > 0; --i) children[parents[i]].push_back(i);
        std::vector<std::pair<int64_t, int64_t>> open{{0, 0}};
        while (!open.empty()) {
            const auto [node, slot] = open.back();
            open.pop_back();
            order.push_back(node), slots.push_back(slot), needed.push_back(!children[node].empty());
            depth = std::max(depth, slot);
            for (int64_t child : children[node]) open.push_back({child, slot + 1});
        }
    }
};

// Paths from the anchor to each leaf, one after another, as if they shared nothing.
struct AllPaths : DepthFirst {
    AllPaths(const int64_t* parents, int64_t nodes) : DepthFirst(parents, nodes) {
        std::vector<int64_t> leaves;
        for (size_t at = 0; at < order.size(); ++at)
            if (!needed[at]) leaves.push_back(order[at]);
        order.clear(), slots.clear(), needed.clear();
        for (int64_t leaf : leaves) {
            std::vector<int64_t> path;
            for (int64_t node = leaf; node >= 0; node = parents[node]) path.push_back(node);
            for (int64_t slot = 0; slot < static_cast<int64_t>(path.size()); ++slot) {
                order.push_back(path[path.size() - 1 - slot]);
                slots.push_back(slot), needed.push_back(path[path.size() - 1 - slot] != leaf);
            }
        }
    }
};

inline void recur(const Verification& p, const DepthFirst& plan) {
#pragma omp parallel num_threads(p.threads)
    {
        std::vector<float> scratch((plan.depth + 2) * p.key_dim * std::min<int64_t>(p.value_dim, WIDEST * LANES));
#pragma omp for schedule(static)
        for (int64_t task = 0; task < p.batch * p.value_heads; ++task)
            Recurrence(p).in_scratch(task / p.value_heads, task % p.value_heads, plan.order, plan.slots, plan.needed,
                                     scratch);
    }
}

// Columns of one state along the path, in cache from the first node to the last.
template <int VECTORS>
void replay_columns(const Commit& p, int64_t r, int64_t hv, int64_t column, std::vector<float>& scratch) {
    const int64_t K = p.key_dim, V = p.value_dim, width = VECTORS * LANES, h = hv / (p.value_heads / p.heads);
    float *state = p.state + (r * p.value_heads + hv) * K * V + column, *work = state;
    const bool copied = V > width && p.length > 1;
    const int64_t stride = copied ? width : V;
    if (copied) {
        work = scratch.data();
        for (int64_t c = 0; c < K; ++c)
            for (int v = 0; v < VECTORS; ++v) store(work + c * width + v * LANES, load(state + c * V + v * LANES));
    }
    for (int64_t at = 0; at < p.length; ++at) {
        const int64_t i = p.path[at];
        const Step step{p.k.at(r, i, h),        nullptr, p.v.at(r, i, hv) + column, fast_exp(*p.g.at(r, i, hv)),
                        *p.beta.at(r, i, hv), 0.f,     nullptr,                   nullptr};
        advance<VECTORS>(step, K, work, stride, work, stride);
    }
    if (copied)
        for (int64_t c = 0; c < K; ++c)
            for (int v = 0; v < VECTORS; ++v) store(state + c * V + v * LANES, load(work + c * width + v * LANES));
}

inline void fold_head(const Commit& p, int64_t r, int64_t hv, std::vector<float>& weights) {
    const int64_t K = p.key_dim, V = p.value_dim, h = hv / (p.value_heads / p.heads);
    double below = 0.0;
    for (int64_t at = p.length - 1; at >= 0; --at) {
        weights[at] = fast_exp(static_cast<float>(below));
        below += *p.g.at(r, p.path[at], hv);
    }
    const float decay = fast_exp(static_cast<float>(below));
    float* row = p.state + (r * p.value_heads + hv) * K * V;
    for (int64_t c = 0; c < K; ++c, row += V) {
        for (int64_t x = 0; x < V; ++x) row[x] *= decay;
        for (int64_t at = 0; at < p.length; ++at) {
            const float weight = weights[at] * p.k.at(r, p.path[at], h)[c];
            const float* u = p.v.at(r, p.path[at], hv);
            for (int64_t x = 0; x < V; ++x) row[x] += weight * u[x];
        }
    }
}
