// Counting with NEON (every 64-bit ARM): the bits of every byte at once, summed up to 31 words at a time.
#include <arm_neon.h>

#include "count.hpp"

namespace mbrace {
namespace {

struct Floats {
    float32x4_t low, high;
};
inline Floats set1(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
inline Floats load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline Floats widen(const std::uint16_t* p) {
    const uint16x8_t all = vld1q_u16(p);
    return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(all))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(all)))};
}
inline void store(float* p, const Floats& a) {
    vst1q_f32(p, a.low);
    vst1q_f32(p + 4, a.high);
}
inline Floats add(const Floats& a, const Floats& b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
inline Floats mul(const Floats& a, const Floats& b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
inline Floats div(const Floats& a, const Floats& b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
inline Floats min(const Floats& a, const Floats& b) { return {vminq_f32(a.low, b.low), vminq_f32(a.high, b.high)}; }
inline Floats max(const Floats& a, const Floats& b) { return {vmaxq_f32(a.low, b.low), vmaxq_f32(a.high, b.high)}; }

constexpr int GROUP = 2;
constexpr std::uint32_t BYTES_FULL = 31;  // 31 * 8 bits still fit in a byte
constexpr int PAIRS = LANES / 2;          // a vector holds two 64-bit lanes

inline void intersections(const Block& block, const std::uint64_t* const* words, std::uint32_t begin, std::uint32_t end,
                          Floats* matches) {
    uint64x2_t total[GROUP][PAIRS];
    for (int g = 0; g < GROUP; ++g) {
        for (int k = 0; k < PAIRS; ++k) total[g][k] = vdupq_n_u64(0);
    }
    for (std::uint32_t j = begin; j < end;) {
        const std::uint32_t stop = end - j < BYTES_FULL ? end : j + BYTES_FULL;
        uint8x16_t bytes[GROUP][PAIRS];
        for (int g = 0; g < GROUP; ++g) {
            for (int k = 0; k < PAIRS; ++k) bytes[g][k] = vdupq_n_u8(0);
        }
        for (; j < stop; ++j) {
            const std::uint64_t* theirs = block.words + j * std::size_t{LANES};
            const std::uint32_t place = block.places[j];
            for (int g = 0; g < GROUP; ++g) {
                const uint64x2_t own = vdupq_n_u64(words[g][place]);
                for (int k = 0; k < PAIRS; ++k) {
                    const uint64x2_t both = vandq_u64(vld1q_u64(theirs + 2 * k), own);
                    bytes[g][k] = vaddq_u8(bytes[g][k], vcntq_u8(vreinterpretq_u8_u64(both)));
                }
            }
        }
        for (int g = 0; g < GROUP; ++g) {
            for (int k = 0; k < PAIRS; ++k) {
                total[g][k] = vpadalq_u32(total[g][k], vpaddlq_u16(vpaddlq_u8(bytes[g][k])));
            }
        }
    }
    for (int g = 0; g < GROUP; ++g) {
        const uint32x4_t low = vcombine_u32(vmovn_u64(total[g][0]), vmovn_u64(total[g][1]));
        const uint32x4_t high = vcombine_u32(vmovn_u64(total[g][2]), vmovn_u64(total[g][3]));
        matches[g] = {vcvtq_f32_u32(low), vcvtq_f32_u32(high)};
    }
}

#include "count_lanes.inl"

}  // namespace

void count_neon(const Formula& formula, const Rows& rows, const Block& block, const std::int64_t* chosen,
                std::size_t count, float* scores, std::size_t scores_stride) {
    count_block(formula, rows, block, chosen, count, scores, scores_stride);
}

}  // namespace mbrace
