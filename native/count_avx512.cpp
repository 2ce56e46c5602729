// Counting with AVX-512: a full adder is two instructions, and a mask register turns bits into bytes.
#include <immintrin.h>

#include <cstring>

#include "count.hpp"
#include "items.hpp"

namespace mbrace {
namespace {

#include "floats_256.inl"

#include "columns_256.inl"

inline Bits sum_of(Bits a, Bits b, Bits c) { return _mm256_ternarylogic_epi64(a, b, c, 0x96); }
inline Bits carry_of(Bits a, Bits b, Bits c) { return _mm256_ternarylogic_epi64(a, b, c, 0xE8); }

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

const Variant avx512_variant{"avx512", count_block<ROWS>, count_block<FEW_ROWS>, spread};

}  // namespace mbrace
