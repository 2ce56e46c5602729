// Counting without any vector instruction: the fallback, and what the other variants must equal.
#include "count.hpp"

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
inline Floats widen(const std::uint16_t* p) {
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

constexpr int GROUP = 1;
constexpr std::uint32_t BYTES_FULL = 31;  // 31 * 8 bits still fit in a byte

// The bits of every byte of a word; plain shifts and masks, which any compiler turns into what vectors there are.
inline std::uint64_t bits_of_bytes(std::uint64_t x) {
    x -= x >> 1 & 0x5555555555555555ull;
    x = (x & 0x3333333333333333ull) + (x >> 2 & 0x3333333333333333ull);
    return (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0Full;
}

inline std::uint64_t sum_of_bytes(std::uint64_t x) {
    x = (x & 0x00FF00FF00FF00FFull) + (x >> 8 & 0x00FF00FF00FF00FFull);
    return x * 0x0001000100010001ull >> 48;
}

inline void intersections(const Block& block, const std::uint64_t* const* words, std::uint32_t begin, std::uint32_t end,
                          Floats* matches) {
    std::uint64_t total[LANES] = {};
    for (std::uint32_t j = begin; j < end;) {
        const std::uint32_t stop = end - j < BYTES_FULL ? end : j + BYTES_FULL;
        std::uint64_t bytes[LANES] = {};
        for (; j < stop; ++j) {
            const std::uint64_t own = words[0][block.places[j]];
            const std::uint64_t* theirs = block.words + j * std::size_t{LANES};
            for (int lane = 0; lane < LANES; ++lane) bytes[lane] += bits_of_bytes(own & theirs[lane]);
        }
        for (int lane = 0; lane < LANES; ++lane) total[lane] += sum_of_bytes(bytes[lane]);
    }
    for (int lane = 0; lane < LANES; ++lane) matches[0].lane[lane] = static_cast<float>(total[lane]);
}

#include "count_lanes.inl"

}  // namespace

void count_portable(const Formula& formula, const Rows& rows, const Block& block, const std::int64_t* chosen,
                    std::size_t count, float* scores, std::size_t scores_stride) {
    count_block(formula, rows, block, chosen, count, scores, scores_stride);
}

}  // namespace mbrace
