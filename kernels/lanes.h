// What the C++ of this package shares: rows of sixteen floats, and an exponential that vectorises.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

constexpr int LANES = 16;
typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
constexpr float NEG_INF = -std::numeric_limits<float>::infinity();

inline Lanes load(const float* p) { return *reinterpret_cast<const Lanes*>(p); }
inline void store(float* p, Lanes v) { *reinterpret_cast<Lanes*>(p) = v; }

inline float dot(const float* a, const float* b, int64_t n) {
    float total = 0.f;
    for (int64_t i = 0; i < n; ++i) total += a[i] * b[i];
    return total;
}

// Relative error below 3e-7 between -87 and 88, and the value at the nearer end beyond: vectorises, unlike the library's.
inline float fast_exp(float x) {
    x = x < -87.f ? -87.f : x > 88.f ? 88.f : x;
    const float n = rintf(x * 1.44269504f);
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691e-4f;
    p = p * r + 1.3981999e-3f;
    p = p * r + 8.3334519e-3f;
    p = p * r + 4.1665796e-2f;
    p = p * r + 1.6666665e-1f;
    p = p * r + 5.0000001e-1f;
    p = (p * r * r + r) + 1.f;
    const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return p * power;
}
