// Counting with AVX2.
#include <immintrin.h>

#include <cstring>

#include "count.hpp"
#include "items.hpp"

namespace mbrace {
namespace {

#include "floats_256.inl"

#include "columns_256.inl"

inline Bits sum_of(Bits a, Bits b, Bits c) { return either_one(either_one(a, b), c); }
inline Bits carry_of(Bits a, Bits b, Bits c) { return _mm256_or_si256(both(a, b), both(either_one(a, b), c)); }

// For 32 hypotheses at a time: each byte gets a copy of the byte that has its bit, and masks that bit out.
inline void expand(const Column* digits, int count, std::uint8_t* bytes) {
    const __m256i source = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,  //
                                            2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ull));
    for (int w = 0; w < ROWS / 32; ++w) {
        __m256i total = _mm256_setzero_si256();
        for (int k = count - 1; k >= 0; --k) {
            int word;
            std::memcpy(&word, reinterpret_cast<const char*>(&digits[k]) + 4 * w, 4);
            const __m256i own = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(word), source), bit);
            total = _mm256_sub_epi8(_mm256_add_epi8(total, total), _mm256_cmpeq_epi8(own, bit));
        }
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes + 32 * w), total);
    }
}

#include "count_lanes.inl"

}  // namespace

const Variant avx2_variant{"avx2", count_block<ROWS>, count_block<FEW_ROWS>, spread};

}  // namespace mbrace
