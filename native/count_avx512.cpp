// Counting with 512-bit vectors and their popcount (AVX-512 VPOPCNTDQ: Ice Lake, Zen 4 and later).
#include <immintrin.h>

#include "count.hpp"

namespace mbrace {
namespace {

#include "floats_256.inl"

constexpr int GROUP = 4;

inline void intersections(const Block& block, const std::uint64_t* const* words, std::uint32_t begin, std::uint32_t end,
                          Floats* matches) {
    __m512i total[GROUP];
    for (int g = 0; g < GROUP; ++g) total[g] = _mm512_setzero_si512();
    for (std::uint32_t j = begin; j < end; ++j) {
        const __m512i theirs = _mm512_loadu_si512(block.words + j * std::size_t{LANES});
        const std::uint32_t place = block.places[j];
        for (int g = 0; g < GROUP; ++g) {
            const __m512i both = _mm512_and_si512(theirs, _mm512_set1_epi64(static_cast<long long>(words[g][place])));
            total[g] = _mm512_add_epi64(total[g], _mm512_popcnt_epi64(both));
        }
    }
    for (int g = 0; g < GROUP; ++g) matches[g] = _mm512_cvtepi64_ps(total[g]);
}

#include "count_lanes.inl"

}  // namespace

void count_avx512(const Formula& formula, const Rows& rows, const Block& block, const std::int64_t* chosen,
                  std::size_t count, float* scores, std::size_t scores_stride) {
    count_block(formula, rows, block, chosen, count, scores, scores_stride);
}

}  // namespace mbrace
