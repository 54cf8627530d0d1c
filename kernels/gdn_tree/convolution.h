// Depthwise causal convolution of width 4 with SiLU, along the path of each node.
#pragma once

#include "calls.h"

constexpr int64_t TAPS = 4, BLOCK = 256;

// One block of channels of one sequence. Weight and window lie channel by channel: they are turned once per block.
inline void convolve(const Convolution& p, int64_t b, int64_t first) {
    const int64_t count = std::min(BLOCK, p.channels - first);
    float weight[TAPS][BLOCK], window[TAPS - 1][BLOCK], bias[BLOCK] = {};
    for (int64_t c = 0; c < count; ++c) {
        for (int64_t tap = 0; tap < TAPS; ++tap) weight[tap][c] = p.weight[(first + c) * TAPS + tap];
        for (int64_t old = 0; old < TAPS - 1; ++old)
            window[old][c] = p.window[(b * p.channels + first + c) * (TAPS - 1) + old];
        if (p.bias) bias[c] = p.bias[first + c];
    }
    for (int64_t i = 0; i < p.nodes; ++i) {
        const float* rows[TAPS];
        int64_t at = i, above = TAPS - 1;  // a node, or above the anchor so many columns of the window
        for (int64_t tap = TAPS - 1; tap >= 0; --tap) {
            rows[tap] = at >= 0 ? p.inputs + b * p.sequence_stride + at * p.node_stride + first : window[--above];
            at = at >= 0 ? p.parents[at] : at;
        }
        float* out = p.outputs + (b * p.nodes + i) * p.channels + first;
        for (int64_t c = 0; c < count; ++c) {
            const float total = bias[c] + weight[0][c] * rows[0][c] + weight[1][c] * rows[1][c] +
                                weight[2][c] * rows[2][c] + weight[3][c] * rows[3][c];
            out[c] = total / (1.f + fast_exp(-total));
        }
    }
}
