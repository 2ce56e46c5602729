// Counting with AVX-512: a full adder is two instructions, and a mask register spreads bits over bytes.
#include <immintrin.h>

#include "count.hpp"
#include "items.hpp"

namespace mbrace {
namespace {

#include "floats_256.inl"

using Bits = __m256i;
inline Bits load_bits(const Column& column) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(&column)); }
inline void store_bits(Column& column, Bits a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(&column), a); }
inline Bits none() { return _mm256_setzero_si256(); }
inline Bits sum_of(Bits a, Bits b, Bits c) { return _mm256_ternarylogic_epi64(a, b, c, 0x96); }
inline Bits carry_of(Bits a, Bits b, Bits c) { return _mm256_ternarylogic_epi64(a, b, c, 0xE8); }
inline Bits both(Bits a, Bits b) { return _mm256_and_si256(a, b); }
inline Bits either_one(Bits a, Bits b) { return _mm256_xor_si256(a, b); }

inline void expand(const Column* digits, int count, std::uint8_t* bytes) {
    const __m512i one = _mm512_set1_epi8(1);
    for (int w = 0; w < ROWS / 64; ++w) {
        __m512i total = _mm512_setzero_si512();
        for (int k = count - 1; k >= 0; --k) {
            total = _mm512_add_epi8(total, total);
            total = _mm512_mask_add_epi8(total, digits[k].words[w], total, one);
        }
        _mm512_storeu_si512(bytes + 64 * w, total);
    }
}

#include "count_lanes.inl"

}  // namespace

void count_avx512(const Formula& formula, const Rows& rows, const Reference& reference, std::uint32_t groups,
                  float* scores) {
    count_block(formula, rows, reference, groups, scores);
}

}  // namespace mbrace
