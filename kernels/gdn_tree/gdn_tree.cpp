// Gated DeltaNet over a token tree on a CPU: the masked solve, the recurrences it is compared with, and the commits.
//
// All in fp32; path sums of log decays in fp64, so that the difference of two of them is exact enough. One task is one
// key head or value head of one sequence; tasks share nothing but inputs.

#include "convolution.h"
#include "recurrence.h"
#include "solve.h"

namespace {

template <class Call>
bool is_tree(const Call& p) {
    for (int64_t i = 0; i < p.nodes; ++i)
        if (i ? p.parents[i] < 0 || p.parents[i] >= i : p.parents[i] != -1) return false;
    return true;
}

bool is_path(const Commit& p) {
    return std::all_of(p.path, p.path + p.length, [&](int64_t node) { return 0 <= node && node < p.nodes; });
}

}  // namespace

// All of these return 0, or 1 where an index is none of the tree, and then nothing was written.

extern "C" int64_t gdn_fused(const Verification* p, int64_t segment) {
    if (!is_tree(*p)) return 1;
    const Segments tree(p->parents, p->nodes, segment);
    // A Gram per key head is the least work; where key heads do not divide among the threads, every value head forms it.
    const bool even = p->batch * p->heads % p->threads == 0;
    const int64_t tasks = even ? p->heads : p->value_heads, share = p->value_heads / tasks;
#pragma omp parallel num_threads(p->threads)
    {
        Solve solve(*p, tree);
#pragma omp for schedule(static)
        for (int64_t task = 0; task < p->batch * tasks; ++task)
            solve.run(task / tasks, task % tasks * share, (task % tasks + 1) * share);
    }
    return 0;
}

extern "C" int64_t gdn_node_recurrent(const Verification* p) {
    if (!is_tree(*p)) return 1;
#pragma omp parallel for schedule(static) num_threads(p->threads)
    for (int64_t task = 0; task < p->batch * p->value_heads; ++task)
        Recurrence(*p).by_node(task / p->value_heads, task % p->value_heads);
    return 0;
}

extern "C" int64_t gdn_node_recurrent_scratch(const Verification* p) {
    if (!is_tree(*p)) return 1;
    recur(*p, DepthFirst(p->parents, p->nodes));
    return 0;
}

extern "C" int64_t gdn_path_recurrent(const Verification* p) {
    if (!is_tree(*p)) return 1;
    recur(*p, AllPaths(p->parents, p->nodes));
    return 0;
}

extern "C" int64_t gdn_replay(const Commit* p) {
    if (!is_path(*p)) return 1;
#pragma omp parallel num_threads(p->threads)
    {
        std::vector<float> scratch(p->key_dim * p->value_dim);
#pragma omp for schedule(static)
        for (int64_t task = 0; task < p->rows * p->value_heads; ++task) {
            const int64_t r = task / p->value_heads, hv = task % p->value_heads;
            by_columns<REPLAYED>(p->value_dim, [&](auto width, int64_t column) {
                replay_columns<width.vectors>(*p, r, hv, column, scratch);
            });
        }
    }
    return 0;
}

extern "C" int64_t gdn_fold(const Commit* p) {
    if (!is_path(*p)) return 1;
#pragma omp parallel num_threads(p->threads)
    {
        std::vector<float> weights(p->length);
#pragma omp for schedule(static)
        for (int64_t task = 0; task < p->rows * p->value_heads; ++task)
            fold_head(*p, task / p->value_heads, task % p->value_heads, weights);
    }
    return 0;
}

extern "C" int64_t gdn_convolve(const Convolution* p) {
    if (!is_tree(*p)) return 1;
    const int64_t blocks = (p->channels + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static) num_threads(p->threads)
    for (int64_t task = 0; task < p->batch * blocks; ++task) convolve(*p, task / blocks, task % blocks * BLOCK);
    return 0;
}
