// Counting with NEON (every 64-bit ARM): scores with NEON instructions, columns as plain words, vectorised by the compiler.
#include <arm_neon.h>

#include <bit>
#include <cstring>

#include "count.hpp"
#include "items.hpp"

namespace mbrace {
namespace {

struct Floats {
    float32x4_t low, high;
};
inline Floats set1(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
inline Floats load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline Floats widen(const std::uint8_t* p) {
    const uint16x8_t all = vmovl_u8(vld1_u8(p));
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

#include "columns_plain.inl"

#include "count_lanes.inl"

}  // namespace

const Variant neon_variant{"neon", count_block<ROWS>, count_block<FEW_ROWS>, spread};

}  // namespace mbrace
