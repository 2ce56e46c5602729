// Counting with AVX2: a nibble look-up gives the bits of every byte, bytes are summed up to 31 words at a time.
#include <immintrin.h>

#include "count.hpp"

namespace mbrace {
namespace {

#include "floats_256.inl"

constexpr int GROUP = 2;
constexpr std::uint32_t BYTES_FULL = 31;  // 31 * 8 bits still fit in a byte

inline __m256i bits_of_bytes(__m256i x) {
    const __m256i nibble = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,  //
                                            0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    const __m256i low = _mm256_set1_epi8(15);
    return _mm256_add_epi8(_mm256_shuffle_epi8(nibble, _mm256_and_si256(x, low)),
                           _mm256_shuffle_epi8(nibble, _mm256_and_si256(_mm256_srli_epi16(x, 4), low)));
}

inline void intersections(const Block& block, const std::uint64_t* const* words, std::uint32_t begin, std::uint32_t end,
                          Floats* matches) {
    __m256i total[GROUP][2];
    const __m256i zero = _mm256_setzero_si256();
    for (int g = 0; g < GROUP; ++g) total[g][0] = total[g][1] = zero;
    for (std::uint32_t j = begin; j < end;) {
        const std::uint32_t stop = end - j < BYTES_FULL ? end : j + BYTES_FULL;
        __m256i bytes[GROUP][2];
        for (int g = 0; g < GROUP; ++g) bytes[g][0] = bytes[g][1] = zero;
        for (; j < stop; ++j) {
            const __m256i* theirs = reinterpret_cast<const __m256i*>(block.words + j * std::size_t{LANES});
            const __m256i first = _mm256_loadu_si256(theirs), second = _mm256_loadu_si256(theirs + 1);
            const std::uint32_t place = block.places[j];
            for (int g = 0; g < GROUP; ++g) {
                const __m256i own = _mm256_set1_epi64x(static_cast<long long>(words[g][place]));
                bytes[g][0] = _mm256_add_epi8(bytes[g][0], bits_of_bytes(_mm256_and_si256(first, own)));
                bytes[g][1] = _mm256_add_epi8(bytes[g][1], bits_of_bytes(_mm256_and_si256(second, own)));
            }
        }
        for (int g = 0; g < GROUP; ++g) {
            for (int half = 0; half < 2; ++half) {
                total[g][half] = _mm256_add_epi64(total[g][half], _mm256_sad_epu8(bytes[g][half], zero));
            }
        }
    }
    // Counts are below 2^31: take the low half of every 64-bit lane, in order.
    const __m256i evens = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    for (int g = 0; g < GROUP; ++g) {
        const __m256i low = _mm256_permutevar8x32_epi32(total[g][0], evens);
        const __m256i high = _mm256_permutevar8x32_epi32(total[g][1], evens);
        matches[g] = _mm256_cvtepi32_ps(_mm256_blend_epi32(low, high, 0xF0));
    }
}

#include "count_lanes.inl"

}  // namespace

void count_avx2(const Formula& formula, const Rows& rows, const Block& block, const std::int64_t* chosen,
                std::size_t count, float* scores, std::size_t scores_stride) {
    count_block(formula, rows, block, chosen, count, scores, scores_stride);
}

}  // namespace mbrace
