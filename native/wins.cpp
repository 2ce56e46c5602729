#include "wins.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>

#include "bootstrap.hpp"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>
#define MBRACE_WINS_X86
#endif
// Plain loops below: one clone for each instruction set that pays, chosen when the library is loaded. They only compare,
// round and add up in a fixed order, so all clones agree.
#if defined(__x86_64__) && defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MBRACE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MBRACE_CLONES
#endif

namespace mbrace {
namespace {

constexpr std::size_t kLanes = Resamples::kLanes;
constexpr std::size_t kRows = 4;  // hypotheses at a time: each block of counts is loaded once for all of them

// Where the count of draw r in resample `lane` of a block is: two draws side by side, lane by lane.
inline std::size_t place_of(std::size_t r, std::size_t lane) { return (r / 2 * kLanes + lane) * 2 + r % 2; }

// Resamples of a block, a bit for each, in which a hypothesis' total is above the margin, or below its negative.
struct Sure {
    std::uint64_t above, below;
};
static_assert(kLanes == 64);

// For kRows hypotheses. Rows and counts are whole numbers, two draws to a 32-bit word, and totals fit 32 bits: all variants
// find the same.
using Compare = void (*)(const std::int32_t* const* rows, std::size_t pairs, const std::int16_t* block,
                         std::int32_t margin, Sure* sure);

void compare_portable(const std::int32_t* const* rows, std::size_t pairs, const std::int16_t* block, std::int32_t margin,
                      Sure* sure) {
    for (std::size_t row = 0; row < kRows; ++row) {
        std::int32_t totals[kLanes] = {};
        for (std::size_t p = 0; p < pairs; ++p) {
            const std::int16_t* counts = block + p * kLanes * 2;
            std::int16_t both[2];
            std::memcpy(both, &rows[row][p], sizeof(both));
            for (std::size_t lane = 0; lane < kLanes; ++lane) {
                totals[lane] += both[0] * counts[2 * lane] + both[1] * counts[2 * lane + 1];
            }
        }
        sure[row] = {0, 0};
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            sure[row].above |= static_cast<std::uint64_t>(totals[lane] > margin) << lane;
            sure[row].below |= static_cast<std::uint64_t>(totals[lane] < -margin) << lane;
        }
    }
}

#ifdef MBRACE_WINS_X86
__attribute__((target("avx2"))) void compare_avx2(const std::int32_t* const* rows, std::size_t pairs,
                                                  const std::int16_t* block, std::int32_t margin, Sure* sure) {
    constexpr std::size_t kWide = 2, kStep = 8 * kWide;  // two vectors of each row at a time stay in registers
    const __m256i high = _mm256_set1_epi32(margin), low = _mm256_set1_epi32(-margin);
    std::fill_n(sure, kRows, Sure{0, 0});
    for (std::size_t first = 0; first < kLanes; first += kStep) {
        __m256i sums[kRows][kWide];
        for (auto& row : sums) row[0] = row[1] = _mm256_setzero_si256();
        for (std::size_t p = 0; p < pairs; ++p) {
            const auto* counts = reinterpret_cast<const __m256i*>(block + (p * kLanes + first) * 2);
            for (std::size_t v = 0; v < kWide; ++v) {
                const __m256i c = _mm256_loadu_si256(counts + v);
                for (std::size_t row = 0; row < kRows; ++row) {
                    sums[row][v] =
                        _mm256_add_epi32(sums[row][v], _mm256_madd_epi16(_mm256_set1_epi32(rows[row][p]), c));
                }
            }
        }
        for (std::size_t row = 0; row < kRows; ++row) {
            for (std::size_t v = 0; v < kWide; ++v) {
                const __m256i above = _mm256_cmpgt_epi32(sums[row][v], high), below = _mm256_cmpgt_epi32(low, sums[row][v]);
                const std::size_t place = first + 8 * v;
                sure[row].above |= static_cast<std::uint64_t>(_mm256_movemask_ps(_mm256_castsi256_ps(above))) << place;
                sure[row].below |= static_cast<std::uint64_t>(_mm256_movemask_ps(_mm256_castsi256_ps(below))) << place;
            }
        }
    }
}

__attribute__((target("avx512f,avx512bw,avx512vnni"))) void compare_avx512(const std::int32_t* const* rows,
                                                                          std::size_t pairs, const std::int16_t* block,
                                                                          std::int32_t margin, Sure* sure) {
    constexpr std::size_t kWide = kLanes / 16;
    const __m512i high = _mm512_set1_epi32(margin), low = _mm512_set1_epi32(-margin);
    __m512i sums[kRows][kWide];
    for (auto& row : sums) {
        for (auto& sum : row) sum = _mm512_setzero_si512();
    }
    for (std::size_t p = 0; p < pairs; ++p) {
        const std::int16_t* counts = block + p * kLanes * 2;
        for (std::size_t v = 0; v < kWide; ++v) {
            const __m512i c = _mm512_loadu_si512(counts + v * 32);
            for (std::size_t row = 0; row < kRows; ++row) {
                sums[row][v] = _mm512_dpwssd_epi32(sums[row][v], _mm512_set1_epi32(rows[row][p]), c);
            }
        }
    }
    for (std::size_t row = 0; row < kRows; ++row) {
        sure[row] = {0, 0};
        for (std::size_t v = 0; v < kWide; ++v) {
            sure[row].above |= static_cast<std::uint64_t>(_mm512_cmpgt_epi32_mask(sums[row][v], high)) << 16 * v;
            sure[row].below |= static_cast<std::uint64_t>(_mm512_cmplt_epi32_mask(sums[row][v], low)) << 16 * v;
        }
    }
}
#endif

Compare best_compare() {
#ifdef MBRACE_WINS_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni")) return compare_avx512;
    if (__builtin_cpu_supports("avx2")) return compare_avx2;
#endif
    return compare_portable;
}

Compare compare_of(WinsVariant variant) {
    static const Compare best = best_compare();
    return variant == WinsVariant::portable ? compare_portable : best;
}

// Utilities less the rival's, weighted, as whole numbers on two grids.
// The fine grid has 52 bits for the largest possible total over a resample, so totals in double are exact: no order of
// addition changes them, and a hypothesis equal to the rival ties exactly. The coarse grid has 15 bits for a difference
// (fewer if totals would not fit 32 bits), so that totals are sums of products of 16-bit numbers; they are off the fine
// ones by half a step a draw at most, and a little for rounding before, and only totals nearer to zero than that are added
// up again on the fine grid. Without weights the coarse grid is found in float: the sign of a difference is exact there too.
class Differences {
  public:
    Differences(const float* utilities, std::size_t hypotheses, std::size_t distinct, const std::int64_t* counts,
                std::size_t draws, const double* weights, std::size_t rival)
        : utilities_(utilities), best_(utilities + rival * distinct), counts_(counts), weights_(weights),
          distinct_(distinct), draws_(draws), pairs_((draws + 1) / 2), coarse_(hypotheses * pairs_), lowest_(hypotheses),
          highest_(hypotheses) {
        double largest = 0;
        for (std::size_t h = 0; h < hypotheses; ++h) {
            const float* row = utilities + h * distinct;
            if (weights) {
                range(row, best_, weights, distinct, &lowest_[h], &highest_[h]);
            } else {
                range(row, best_, distinct, &lowest_[h], &highest_[h]);
            }
            largest = std::max({largest, -lowest_[h], highest_[h]});
        }
        if (largest == 0) return;
        int exponent;
        std::frexp(largest * static_cast<double>(draws), &exponent);
        fine_scale_ = std::ldexp(1.0, 52 - exponent);
        const double scale = std::min(32767.0, 2147483647.0 / static_cast<double>(draws + 2) - 1) / largest;
        std::vector<std::uint32_t> of;  // by draw: which one it is
        if (distinct < draws) {
            for (std::size_t c = 0; c < distinct; ++c) of.insert(of.end(), counts[c], static_cast<std::uint32_t>(c));
        }
        std::vector<std::int16_t> row(distinct);
        for (std::size_t h = 0; h < hypotheses; ++h) {
            if (decided(h)) continue;
            auto* out = reinterpret_cast<std::int16_t*>(&coarse_[h * pairs_]);
            std::int16_t* grid = distinct < draws ? row.data() : out;
            if (weights) {
                round_row(utilities + h * distinct, best_, weights, distinct, scale, grid);
            } else {
                round_row(utilities + h * distinct, best_, distinct, static_cast<float>(scale), grid);
            }
            for (std::size_t r = 0; r < of.size(); ++r) out[r] = row[of[r]];
        }
    }

    // Never below the rival, so every resample is won; or always below it, so none is.
    bool decided(std::size_t h) const { return lowest_[h] >= 0 || highest_[h] < 0; }
    bool wins_all(std::size_t h) const { return lowest_[h] >= 0; }

    // Two draws to a word.
    const std::int32_t* coarse(std::size_t h) const { return &coarse_[h * pairs_]; }

    // A coarse total that is farther from zero has the sign of the fine one.
    std::int32_t margin() const { return static_cast<std::int32_t>(draws_ / 2 + draws_ / 64 + 2); }

    // Whether hypothesis h wins resample `lane` of a block, on the fine grid.
    bool exact_win(std::size_t h, const std::int16_t* block, std::size_t lane) const {
        double total = 0;
        std::size_t r = 0;
        for (std::size_t c = 0; c < distinct_; ++c) {
            int times = 0;
            for (std::int64_t copy = 0; copy < counts_[c]; ++copy, ++r) times += block[place_of(r, lane)];
            if (times) total += std::nearbyint(difference(h, c) * fine_scale_) * times;
        }
        return total >= 0;
    }

  private:
    double difference(std::size_t h, std::size_t c) const {
        const double plain = static_cast<double>(utilities_[h * distinct_ + c]) - static_cast<double>(best_[c]);
        return weights_ ? plain * weights_[c] : plain;
    }

    MBRACE_CLONES
    static void range(const float* ours, const float* best, const double* weights, std::size_t distinct, double* lowest,
                      double* highest) {
        double low = (static_cast<double>(ours[0]) - static_cast<double>(best[0])) * weights[0], high = low;
        for (std::size_t c = 1; c < distinct; ++c) {
            const double value = (static_cast<double>(ours[c]) - static_cast<double>(best[c])) * weights[c];
            low = value < low ? value : low;
            high = value > high ? value : high;
        }
        *lowest = low;
        *highest = high;
    }

    MBRACE_CLONES
    static void range(const float* ours, const float* best, std::size_t distinct, double* lowest, double* highest) {
        float low = ours[0] - best[0], high = low;
        for (std::size_t c = 1; c < distinct; ++c) {
            const float value = ours[c] - best[c];
            low = value < low ? value : low;
            high = value > high ? value : high;
        }
        *lowest = low;
        *highest = high;
    }

    MBRACE_CLONES
    static void round_row(const float* ours, const float* best, const double* weights, std::size_t distinct,
                          double scale, std::int16_t* row) {
        for (std::size_t c = 0; c < distinct; ++c) {
            const double value = (static_cast<double>(ours[c]) - static_cast<double>(best[c])) * weights[c];
            row[c] = static_cast<std::int16_t>(static_cast<std::int32_t>(std::nearbyint(value * scale)));
        }
    }

    MBRACE_CLONES
    static void round_row(const float* ours, const float* best, std::size_t distinct, float scale, std::int16_t* row) {
        for (std::size_t c = 0; c < distinct; ++c) {
            row[c] = static_cast<std::int16_t>(static_cast<std::int32_t>(std::nearbyint((ours[c] - best[c]) * scale)));
        }
    }

    const float* utilities_;
    const float* best_;
    const std::int64_t* counts_;
    const double* weights_;
    std::size_t distinct_;
    std::size_t draws_;
    std::size_t pairs_;
    double fine_scale_ = 0;
    std::vector<std::int32_t> coarse_;
    std::vector<double> lowest_, highest_;
};

}  // namespace

MBRACE_CLONES
void expected_utilities(const float* utilities, std::size_t hypotheses, std::size_t distinct, const double* weights,
                        double* means) {
    constexpr std::size_t kSums = 8;  // always the same eight, so that no instruction set changes the order of additions
    for (std::size_t h = 0; h < hypotheses; ++h, utilities += distinct) {
        double sums[kSums] = {};
        std::size_t c = 0;
        for (; c + kSums <= distinct; c += kSums) {
            for (std::size_t k = 0; k < kSums; ++k) sums[k] += static_cast<double>(utilities[c + k]) * weights[c + k];
        }
        for (std::size_t k = 0; c + k < distinct; ++k) sums[k] += static_cast<double>(utilities[c + k]) * weights[c + k];
        means[h] = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }
}

Resamples::Resamples(std::uint64_t seed, std::uint32_t draws, std::size_t bootstraps)
    : draws_(draws), bootstraps_(bootstraps), block_((draws + 1) / 2 * 2 * kLanes),
      counts_((bootstraps + kLanes - 1) / kLanes * block_) {
    Draws random(seed, draws);
    for (std::size_t b = 0; b < bootstraps; ++b) {
        std::int16_t* block = counts_.data() + b / kLanes * block_;
        for (std::uint32_t d = 0; d < draws; ++d) ++block[place_of(random.next(), b % kLanes)];
    }
}

int Resamples::count(std::size_t b, std::size_t r) const {
    return counts_[b / kLanes * block_ + place_of(r, b % kLanes)];
}

void Resamples::wins(const float* utilities, std::size_t hypotheses, std::size_t distinct, const std::int64_t* counts,
                     const double* weights, std::size_t rival, const double* enough, std::int64_t* wins,
                     WinsVariant variant) const {
    const Differences rows(utilities, hypotheses, distinct, counts, draws_, weights, rival);
    const Compare compare = compare_of(variant);
    const std::int32_t margin = rows.margin();
    std::vector<std::size_t> open;
    for (std::size_t h = 0; h < hypotheses; ++h) {
        wins[h] = rows.wins_all(h) ? static_cast<std::int64_t>(bootstraps_) : 0;
        if (!rows.decided(h)) open.push_back(h);
    }
    Sure sure[kRows];
    for (std::size_t first = 0; first < bootstraps_ && !open.empty(); first += kLanes) {
        const std::int16_t* block = counts_.data() + first / kLanes * block_;
        const std::size_t valid = std::min(kLanes, bootstraps_ - first);
        const std::uint64_t there = ~std::uint64_t{0} >> (kLanes - valid);
        for (std::size_t i = 0; i < open.size(); i += kRows) {
            const std::int32_t* group[kRows];
            const std::size_t size = std::min(kRows, open.size() - i);
            for (std::size_t row = 0; row < kRows; ++row) group[row] = rows.coarse(open[i + std::min(row, size - 1)]);
            compare(group, (draws_ + 1) / 2, block, margin, sure);
            for (std::size_t row = 0; row < size; ++row) {
                const std::size_t h = open[i + row];
                wins[h] += std::popcount(sure[row].above & there);
                for (std::uint64_t unsure = there & ~(sure[row].above | sure[row].below); unsure; unsure &= unsure - 1) {
                    wins[h] += rows.exact_win(h, block, static_cast<std::size_t>(std::countr_zero(unsure)));
                }
            }
        }
        const double left = static_cast<double>(bootstraps_ - first - valid);
        if (enough) std::erase_if(open, [&](std::size_t h) {
            const double won = static_cast<double>(wins[h]);
            return won > *enough || won + left <= *enough;
        });
    }
}

std::vector<std::int64_t> decide(const Resamples* resamples, const float* utilities, std::size_t hypotheses,
                                 std::size_t distinct, const std::int64_t* counts, const double* weights,
                                 std::size_t nbest, double enough, double* means) {
    const auto draws = static_cast<double>(std::accumulate(counts, counts + distinct, std::int64_t{0}));
    std::vector<double> share(distinct), single(weights ? distinct : 0);  // of all copies of a draw together, and of one
    for (std::size_t c = 0; c < distinct; ++c) {
        const auto count = static_cast<double>(counts[c]);
        share[c] = weights ? weights[c] : count / draws;
        if (weights) single[c] = share[c] / count;
    }
    expected_utilities(utilities, hypotheses, distinct, share.data(), means);
    std::vector<std::int64_t> stay(hypotheses);
    std::iota(stay.begin(), stay.end(), 0);
    if (!resamples || hypotheses <= nbest) return stay;
    std::vector<std::int64_t> ranking = stay;
    std::partial_sort(ranking.begin(), ranking.begin() + nbest, ranking.end(), [&](std::int64_t a, std::int64_t b) {
        return means[a] != means[b] ? means[a] > means[b] : a < b;
    });
    std::vector<std::int64_t> wins(hypotheses);
    resamples->wins(utilities, hypotheses, distinct, counts, weights ? single.data() : nullptr, ranking[nbest - 1], &enough,
                    wins.data());
    for (std::size_t k = 0; k < nbest; ++k) wins[ranking[k]] = std::numeric_limits<std::int64_t>::max();
    std::erase_if(stay, [&](std::int64_t h) { return static_cast<double>(wins[h]) <= enough; });
    return stay;
}

}  // namespace mbrace
