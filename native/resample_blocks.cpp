// Totals over a block of resamples with AVX-512, with AVX2 and without special instructions.
#include "resample_blocks.hpp"

#include <algorithm>
#include <cstring>

#include "clones.hpp"
#include "cpu.hpp"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>
#define MBRACE_BLOCKS_X86
#endif

namespace mbrace {
namespace {

void compare_portable(const std::int32_t* const* rows, std::size_t pairs, const std::int16_t* block, std::int32_t margin,
                      Certain* certain) {
    for (std::size_t row = 0; row < GROUP_ROWS; ++row) {
        std::int32_t totals[BLOCK_RESAMPLES] = {};
        for (std::size_t p = 0; p < pairs; ++p) {
            const std::int16_t* counts = block + p * BLOCK_RESAMPLES * 2;
            std::int16_t pair[2];
            std::memcpy(pair, &rows[row][p], sizeof(pair));
            for (std::size_t lane = 0; lane < BLOCK_RESAMPLES; ++lane) {
                totals[lane] += pair[0] * counts[2 * lane] + pair[1] * counts[2 * lane + 1];
            }
        }
        certain[row] = {0, 0};
        for (std::size_t lane = 0; lane < BLOCK_RESAMPLES; ++lane) {
            certain[row].above |= static_cast<std::uint64_t>(totals[lane] > margin) << lane;
            certain[row].below |= static_cast<std::uint64_t>(totals[lane] < -margin) << lane;
        }
    }
}

#ifdef MBRACE_BLOCKS_X86
__attribute__((target("avx2"))) void compare_avx2(const std::int32_t* const* rows, std::size_t pairs,
                                                  const std::int16_t* block, std::int32_t margin, Certain* certain) {
    constexpr std::size_t VECTORS = 2, STEP = 8 * VECTORS;  // so few that the sums of all rows stay in registers
    const __m256i high = _mm256_set1_epi32(margin), low = _mm256_set1_epi32(-margin);
    for (std::size_t first = 0; first < BLOCK_RESAMPLES; first += STEP) {
        __m256i sums[GROUP_ROWS][VECTORS];
        for (auto& row : sums) row[0] = row[1] = _mm256_setzero_si256();
#pragma GCC unroll 2
        for (std::size_t p = 0; p < pairs; ++p) {
            const auto* counts = reinterpret_cast<const __m256i*>(block + (p * BLOCK_RESAMPLES + first) * 2);
            for (std::size_t v = 0; v < VECTORS; ++v) {
                const __m256i c = _mm256_loadu_si256(counts + v);
                for (std::size_t row = 0; row < GROUP_ROWS; ++row) {
                    sums[row][v] = _mm256_add_epi32(sums[row][v], _mm256_madd_epi16(_mm256_set1_epi32(rows[row][p]), c));
                }
            }
        }
        for (std::size_t row = 0; row < GROUP_ROWS; ++row) {
            for (std::size_t v = 0; v < VECTORS; ++v) {
                const __m256i above = _mm256_cmpgt_epi32(sums[row][v], high), below = _mm256_cmpgt_epi32(low, sums[row][v]);
                const std::size_t byte = first / 8 + v;  // of the eight of a word: the least significant comes first
                reinterpret_cast<unsigned char*>(&certain[row].above)[byte] =
                    _mm256_movemask_ps(_mm256_castsi256_ps(above));
                reinterpret_cast<unsigned char*>(&certain[row].below)[byte] =
                    _mm256_movemask_ps(_mm256_castsi256_ps(below));
            }
        }
    }
}

__attribute__((target("avx512f,avx512bw,avx512vnni"))) void compare_avx512(const std::int32_t* const* rows,
                                                                           std::size_t pairs, const std::int16_t* block,
                                                                           std::int32_t margin, Certain* certain) {
    constexpr std::size_t VECTORS = BLOCK_RESAMPLES / 16;
    const __m512i high = _mm512_set1_epi32(margin), low = _mm512_set1_epi32(-margin);
    __m512i sums[GROUP_ROWS][VECTORS];
    for (auto& row : sums) {
        for (auto& sum : row) sum = _mm512_setzero_si512();
    }
    for (std::size_t p = 0; p < pairs; ++p) {
        const std::int16_t* counts = block + p * BLOCK_RESAMPLES * 2;
        for (std::size_t v = 0; v < VECTORS; ++v) {
            const __m512i c = _mm512_loadu_si512(counts + v * 32);
            for (std::size_t row = 0; row < GROUP_ROWS; ++row) {
                sums[row][v] = _mm512_dpwssd_epi32(sums[row][v], _mm512_set1_epi32(rows[row][p]), c);
            }
        }
    }
    for (std::size_t row = 0; row < GROUP_ROWS; ++row) {
        certain[row] = {0, 0};
        for (std::size_t v = 0; v < VECTORS; ++v) {
            certain[row].above |= static_cast<std::uint64_t>(_mm512_cmpgt_epi32_mask(sums[row][v], high)) << 16 * v;
            certain[row].below |= static_cast<std::uint64_t>(_mm512_cmplt_epi32_mask(sums[row][v], low)) << 16 * v;
        }
    }
}
#endif

Compare best_compare() {
#ifdef MBRACE_BLOCKS_X86
    const Cpu cpu = ask_cpu();
    if (cpu.avx512_vnni) return compare_avx512;
    if (cpu.avx2) return compare_avx2;
#endif
    return compare_portable;
}

MBRACE_CLONES
void add_up_block(const std::int32_t* row, std::size_t pairs, const std::int16_t* block, std::int32_t* totals) {
    std::fill_n(totals, BLOCK_RESAMPLES, 0);
    for (std::size_t p = 0; p < pairs; ++p) {
        const std::int16_t* counts = block + p * BLOCK_RESAMPLES * 2;
        std::int16_t both[2];
        std::memcpy(both, &row[p], sizeof(both));
        for (std::size_t lane = 0; lane < BLOCK_RESAMPLES; ++lane) {
            totals[lane] += both[0] * counts[2 * lane] + both[1] * counts[2 * lane + 1];
        }
    }
}

}  // namespace

Compare compare_of(WinsVariant variant) {
    static const Compare best = best_compare();
    return variant == WinsVariant::portable ? compare_portable : best;
}

void block_totals(const std::int32_t* row, std::size_t pairs, const std::int16_t* block, std::int32_t* totals) {
    add_up_block(row, pairs, block, totals);
}

}  // namespace mbrace
