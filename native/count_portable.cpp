// Counting without any vector instruction: the fallback, and what the other variants must equal.
#include <bit>
#include <cstring>

#include "count.hpp"
#include "items.hpp"

namespace mbrace {
namespace {

struct Floats {
    float lane[LANES];
};

template <class Operation>
inline Floats each(const Floats& a, const Floats& b, Operation operation) {
    Floats out;
    for (int i = 0; i < LANES; ++i) out.lane[i] = operation(a.lane[i], b.lane[i]);
    return out;
}
inline Floats set1(float x) { return {{x, x, x, x, x, x, x, x}}; }
inline Floats load(const float* p) { return {{p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]}}; }
inline Floats widen(const std::uint8_t* p) {
    Floats out;
    for (int i = 0; i < LANES; ++i) out.lane[i] = static_cast<float>(p[i]);
    return out;
}
inline void store(float* p, const Floats& a) {
    for (int i = 0; i < LANES; ++i) p[i] = a.lane[i];
}
inline Floats add(const Floats& a, const Floats& b) {
    return each(a, b, [](float x, float y) { return x + y; });
}
inline Floats mul(const Floats& a, const Floats& b) {
    return each(a, b, [](float x, float y) { return x * y; });
}
inline Floats div(const Floats& a, const Floats& b) {
    return each(a, b, [](float x, float y) { return x / y; });
}
inline Floats min(const Floats& a, const Floats& b) {
    return each(a, b, [](float x, float y) { return x < y ? x : y; });
}
inline Floats max(const Floats& a, const Floats& b) {
    return each(a, b, [](float x, float y) { return x > y ? x : y; });
}

#include "columns_plain.inl"

#include "count_lanes.inl"

}  // namespace

const Variant portable_variant{"portable", count_block<ROWS>, count_block<FEW_ROWS>, spread};

}  // namespace mbrace
