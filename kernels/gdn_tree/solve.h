// The masked triangular solve over a tree. Maths: README.md.
#pragma once

#include "products.h"

// Nodes in segments of bounded depth. A segment hangs under a base, whose state the solve forms; the first hangs under
// the committed state (base -1). `above` lists, for each node, its ancestors in its own segment and then itself.
struct Segments {
    std::vector<int64_t> base, first, above, group_of;
    std::vector<std::vector<int64_t>> groups;  // nodes that share a base

    Segments(const int64_t* parents, int64_t nodes, int64_t longest) : base(nodes), first(1, 0), group_of(nodes) {
        std::vector<int64_t> opened(nodes, -1);
        for (int64_t i = 0; i < nodes; ++i) {
            const int64_t parent = parents[i];
            const bool continues = parent >= 0 && first[parent + 1] - first[parent] < longest;
            if (continues) {
                for (int64_t at = first[parent]; at < first[parent + 1]; ++at) above.push_back(above[at]);
                base[i] = base[parent], group_of[i] = group_of[parent];
            } else {
                base[i] = parent;
                int64_t& group = parent < 0 ? root : opened[parent];
                if (group < 0) group = groups.size(), groups.emplace_back();
                group_of[i] = group;
            }
            above.push_back(i);
            first.push_back(above.size());
            groups[group_of[i]].push_back(i);
        }
    }

  private:
    int64_t root = -1;
};

// Value heads that share a key head: its Gram once, then each of them.
class Solve {
  public:
    Solve(const Verification& p, const Segments& tree)
        : p(p), tree(tree), K(p.key_dim), V(p.value_dim), kk(tree.above.size()), qk(kk.size()), update(kk.size()),
          readout(kk.size()), packed(2 * p.nodes * K), sums(p.nodes), decay(p.nodes), strength(p.nodes),
          reads(2 * NODES * V), bases(p.nodes) {}

    // Value heads `begin` to `end`, all of one key head.
    void run(int64_t b, int64_t begin, int64_t end) {
        const int64_t h = begin / (p.value_heads / p.heads);
        gram(b, h);
        pack(b, h);
        for (int64_t hv = begin; hv < end; ++hv) {
            weigh(b, hv);
            u = p.pseudo_values + (b * p.value_heads + hv) * p.nodes * V;
            const float* a = packed.data();
            for (const auto& nodes : tree.groups) {
                const int64_t base = tree.base[nodes[0]];
                if (base >= 0) form_state(b, h, hv, base);
                state.set(base < 0 ? committed(b, hv) : bases[base].data(), K, V);
                for (size_t start = 0; start < nodes.size(); start += NODES) {
                    const int64_t count = std::min<int64_t>(NODES, nodes.size() - start);
                    solve_block(b, hv, &nodes[start], count, a);
                    a += 2 * count * K;
                }
            }
        }
    }

  private:
    const Verification& p;
    const Segments& tree;
    const int64_t K, V;
    std::vector<float> kk, qk, update, readout;  // per listed pair
    std::vector<float> packed;                   // keys and queries, block by block as `multiply` reads them
    std::vector<double> sums;                    // of g, from below the base to the node
    std::vector<float> decay, strength, reads;
    std::vector<std::vector<float>> bases;
    Panels state, updates;
    float* u = nullptr;  // [N, V] of the value head at work

    const float* committed(int64_t b, int64_t hv) const { return p.state + (b * p.value_heads + hv) * K * V; }

    void gram(int64_t b, int64_t h) {
        for (int64_t i = 0; i < p.nodes; ++i) {
            const int64_t at = tree.first[i];
            any_pair_dots(p.k.at(b, i, h), p.q.at(b, i, h), p.k, b, h, &tree.above[at], tree.first[i + 1] - at, K,
                          &kk[at], &qk[at]);
        }
    }

    void pack(int64_t b, int64_t h) {
        float* to = packed.data();
        for (const auto& nodes : tree.groups)
            for (size_t start = 0; start < nodes.size(); start += NODES) {
                const int64_t count = std::min<int64_t>(NODES, nodes.size() - start);
                for (int64_t n = 0; n < count; ++n) {
                    const float *key = p.k.at(b, nodes[start + n], h), *query = p.q.at(b, nodes[start + n], h);
                    for (int64_t c = 0; c < K; ++c)
                        to[2 * count * c + n] = key[c], to[2 * count * c + count + n] = query[c];
                }
                to += 2 * count * K;
            }
    }

    // Coefficients of the solve: update = -beta e^{G_i - G_j} k_i.k_j, readout = scale e^{G_i - G_j} q_i.k_j.
    void weigh(int64_t b, int64_t hv) {
        const float scale = p.scale;
        for (int64_t i = 0; i < p.nodes; ++i) {
            const int64_t begin = tree.first[i], end = tree.first[i + 1];
            sums[i] = *p.g.at(b, i, hv) + (end - begin > 1 ? sums[tree.above[end - 2]] : 0.0);
            for (int64_t at = begin; at < end; ++at) update[at] = static_cast<float>(sums[i] - sums[tree.above[at]]);
        }
        for (size_t at = 0; at < update.size(); ++at) update[at] = fast_exp(update[at]);
        for (int64_t i = 0; i < p.nodes; ++i) decay[i] = fast_exp(static_cast<float>(sums[i]));
        for (int64_t i = 0; i < p.nodes; ++i) {
            strength[i] = *p.beta.at(b, i, hv);
            for (int64_t at = tree.first[i]; at < tree.first[i + 1]; ++at) {
                readout[at] = scale * update[at] * qk[at];
                update[at] *= -strength[i] * kk[at];
            }
        }
    }

    // K S and Q S of a few nodes, then, while those rows are in cache, the nodes one after another.
    void solve_block(int64_t b, int64_t hv, const int64_t* nodes, int64_t count, const float* a) {
        float* rows[2 * NODES];
        for (int64_t r = 0; r < 2 * count; ++r) rows[r] = &reads[r * V];
        for (int64_t n = 0; n < count; ++n) fetch(b, hv, nodes[n]);
        std::fill_n(reads.data(), 2 * count * V, 0.f);
        state.multiply(2 * count, a, rows);
        for (int64_t n = 0; n < count; ++n)
            by_columns(V, [&](auto width, int64_t column) {
                solve_columns<width.vectors>(b, hv, nodes[n], rows[n], rows[count + n], column);
            });
    }

    // Rows of one head lie far apart: no hardware prefetcher follows them.
    void fetch(int64_t b, int64_t hv, int64_t i) const {
        for (int64_t x = 0; x < V; x += LANES) {
            __builtin_prefetch(p.v.at(b, i, hv) + x, 0, 2);
            __builtin_prefetch(output_row(b, hv, i) + x, 0, 2);
        }
    }

    float* output_row(int64_t b, int64_t hv, int64_t i) const {
        return p.outputs + ((b * p.nodes + i) * p.value_heads + hv) * V;
    }

    template <int VECTORS>
    void solve_columns(int64_t b, int64_t hv, int64_t i, const float* key_read, const float* query_read,
                       int64_t column) {
        const int64_t self = tree.first[i + 1] - 1;
        const float gain = strength[i], read = gain * decay[i], scale = p.scale * decay[i];
        const float* value = p.v.at(b, i, hv) + column;
        float* output = output_row(b, hv, i) + column;
        Lanes own[VECTORS], out[VECTORS];
        for (int v = 0; v < VECTORS; ++v) {
            own[v] = gain * load(value + v * LANES) - read * load(key_read + column + v * LANES);
            out[v] = scale * load(query_read + column + v * LANES);
        }
        for (int64_t at = tree.first[i]; at < self; ++at) {
            const float* other = &u[tree.above[at] * V + column];
            for (int v = 0; v < VECTORS; ++v) {
                const Lanes x = load(other + v * LANES);
                own[v] += update[at] * x, out[v] += readout[at] * x;
            }
        }
        for (int v = 0; v < VECTORS; ++v) {
            store(&u[i * V + column + v * LANES], own[v]);
            store(output + v * LANES, out[v] + readout[self] * own[v]);
        }
    }

    // State of a node that other segments start from: e^G S_base + sum over its segment of e^{G - G_j} k_j u_j^T.
    void form_state(int64_t b, int64_t h, int64_t hv, int64_t node) {
        const float* from = tree.base[node] < 0 ? committed(b, hv) : bases[tree.base[node]].data();
        const int64_t *list = &tree.above[tree.first[node]], count = tree.first[node + 1] - tree.first[node];
        auto& state = bases[node];
        state.resize(K * V);
        for (int64_t x = 0; x < K * V; ++x) state[x] = decay[node] * from[x];
        std::vector<const float*> rows(count);
        std::vector<float> weights(count), a(2 * NODES * count);
        for (int64_t j = 0; j < count; ++j) {
            rows[j] = &u[list[j] * V];
            weights[j] = fast_exp(static_cast<float>(sums[node] - sums[list[j]]));
        }
        updates.gather(rows.data(), count, V);
        for (int64_t c = 0; c < K; c += 2 * NODES) {
            const int64_t channels = std::min<int64_t>(2 * NODES, K - c);
            float* out[2 * NODES];
            for (int64_t r = 0; r < channels; ++r) out[r] = &state[(c + r) * V];
            for (int64_t j = 0; j < count; ++j)
                for (int64_t r = 0; r < channels; ++r) a[j * channels + r] = weights[j] * p.k.at(b, list[j], h)[c + r];
            updates.multiply(channels, a.data(), out);
        }
    }
};
