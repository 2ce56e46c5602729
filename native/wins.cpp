// Three steps, each only for what the one before left open: differences from the rival that say who wins every resample;
// totals on a coarse grid of 16-bit integers, many resamples at a time (AVX-512, AVX2 or portable); and, where a total is
// too close to zero to tell, the exact sum on a fine grid. At the end, the decisions of a step for a window of sentences.
#include "wins.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <type_traits>

#include "bootstrap.hpp"
#include "cpu.hpp"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>
#define MBRACE_WINS_X86
#endif
// Functions marked so are compiled once per instruction set, and the best is chosen when the library is loaded. They
// compare, round and add in a fixed order, so all give the same bits. (Only glibc can choose: musl has no such functions.)
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MBRACE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MBRACE_CLONES
#endif

namespace mbrace {
namespace {

constexpr std::size_t BLOCK_RESAMPLES = Resamples::BLOCK_RESAMPLES;
constexpr std::size_t GROUP_ROWS = 4;  // hypotheses at a time: each block of counts is loaded once for all of them

// The index, within a block, of the count of draw r in its resample `lane`: pairs of draws, and for each pair the 64
// resamples: [r / 2][lane][r % 2].
inline std::size_t count_index(std::size_t r, std::size_t lane) { return (r / 2 * BLOCK_RESAMPLES + lane) * 2 + r % 2; }

// The resamples of a block, one bit each, in which a hypothesis' total is above the margin, or below minus the margin:
// certain wins and certain losses.
struct Certain {
    std::uint64_t above, below;
};
static_assert(BLOCK_RESAMPLES == 64);

// For GROUP_ROWS hypotheses at once. Rows and counts are 16-bit integers, a pair of draws in each 32-bit word, and totals
// fit 32 bits, so all variants find the same.
using Compare = void (*)(const std::int32_t* const* rows, std::size_t pairs, const std::int16_t* block,
                         std::int32_t margin, Certain* certain);

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

#ifdef MBRACE_WINS_X86
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
                    sums[row][v] =
                        _mm256_add_epi32(sums[row][v], _mm256_madd_epi16(_mm256_set1_epi32(rows[row][p]), c));
                }
            }
        }
        for (std::size_t row = 0; row < GROUP_ROWS; ++row) {
            for (std::size_t v = 0; v < VECTORS; ++v) {
                const __m256i above = _mm256_cmpgt_epi32(sums[row][v], high), below = _mm256_cmpgt_epi32(low, sums[row][v]);
                const std::size_t byte = first / 8 + v;  // of the eight of a word: the least significant comes first
                reinterpret_cast<unsigned char*>(&certain[row].above)[byte] = _mm256_movemask_ps(_mm256_castsi256_ps(above));
                reinterpret_cast<unsigned char*>(&certain[row].below)[byte] = _mm256_movemask_ps(_mm256_castsi256_ps(below));
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
#ifdef MBRACE_WINS_X86
    const Cpu cpu = ask_cpu();
    if (cpu.avx512_vnni) return compare_avx512;
    if (cpu.avx2) return compare_avx2;
#endif
    return compare_portable;
}

Compare compare_of(WinsVariant variant) {
    static const Compare best = best_compare();
    return variant == WinsVariant::portable ? compare_portable : best;
}

// Of each hypothesis' utilities minus the rival's, times the weights, the lowest and the highest; and all, on a grid.
MBRACE_CLONES
void range(const float* own, const float* rival, const double* weights, std::size_t distinct, double* lowest,
           double* highest) {
    double low = (static_cast<double>(own[0]) - static_cast<double>(rival[0])) * weights[0], high = low;
    for (std::size_t c = 1; c < distinct; ++c) {
        const double value = (static_cast<double>(own[c]) - static_cast<double>(rival[c])) * weights[c];
        low = value < low ? value : low;
        high = value > high ? value : high;
    }
    *lowest = low;
    *highest = high;
}

MBRACE_CLONES
void range(const float* own, const float* rival, std::size_t distinct, double* lowest, double* highest) {
    float low = own[0] - rival[0], high = low;
    for (std::size_t c = 1; c < distinct; ++c) {
        const float value = own[c] - rival[c];
        low = value < low ? value : low;
        high = value > high ? value : high;
    }
    *lowest = low;
    *highest = high;
}

MBRACE_CLONES
void round_row(const float* own, const float* rival, const double* weights, std::size_t distinct, double scale,
               std::int16_t* row) {
    for (std::size_t c = 0; c < distinct; ++c) {
        const double value = (static_cast<double>(own[c]) - static_cast<double>(rival[c])) * weights[c];
        row[c] = static_cast<std::int16_t>(static_cast<std::int32_t>(std::nearbyint(value * scale)));
    }
}

MBRACE_CLONES
void round_row(const float* own, const float* rival, std::size_t distinct, float scale, std::int16_t* row) {
    for (std::size_t c = 0; c < distinct; ++c) {
        row[c] = static_cast<std::int16_t>(static_cast<std::int32_t>(std::nearbyint((own[c] - rival[c]) * scale)));
    }
}

// The same for doubles, which come from utilities that take far longer than this.
double difference(const double* own, const double* rival, const double* weights, std::size_t c) {
    return weights ? (own[c] - rival[c]) * weights[c] : own[c] - rival[c];
}

void range(const double* own, const double* rival, const double* weights, std::size_t distinct, double* lowest,
           double* highest) {
    *lowest = *highest = difference(own, rival, weights, 0);
    for (std::size_t c = 1; c < distinct; ++c) {
        const double value = difference(own, rival, weights, c);
        *lowest = std::min(*lowest, value);
        *highest = std::max(*highest, value);
    }
}

void range(const double* own, const double* rival, std::size_t distinct, double* lowest, double* highest) {
    range(own, rival, nullptr, distinct, lowest, highest);
}

void round_row(const double* own, const double* rival, const double* weights, std::size_t distinct, double scale,
               std::int16_t* row) {
    for (std::size_t c = 0; c < distinct; ++c) {
        const double value = std::nearbyint(difference(own, rival, weights, c) * scale);
        row[c] = static_cast<std::int16_t>(static_cast<std::int32_t>(value));
    }
}

void round_row(const double* own, const double* rival, std::size_t distinct, double scale, std::int16_t* row) {
    round_row(own, rival, nullptr, distinct, scale, row);
}

// Each hypothesis' utilities minus the rival's, times the weights, rounded to integers on two grids.
// The fine grid has 52 bits for the largest possible total over a resample, so totals in double are exact: no order of
// addition changes them, and a hypothesis equal to the rival ties exactly. The coarse grid has 15 bits per difference
// (fewer if totals would not fit 32 bits), so that totals are sums of products of 16-bit integers. A coarse total differs
// from the fine one by at most half a step per draw, and a little for the rounding of differences: only totals closer to
// zero than this margin are added up again on the fine grid. Without weights the coarse grid is computed in float: the sign
// of a difference is exact there too. Each hypothesis has a coarse grid of its own, so that few totals of one that is
// nearly the rival are within the margin; with `one_grid` all have the same, and their totals can be compared.
template <class Number>  // float or double
class Differences {
  public:
    Differences(const Number* utilities, std::size_t hypotheses, std::size_t distinct, const std::int64_t* counts,
                std::size_t draws, const double* weights, std::size_t rival, bool one_grid = false)
        : utilities_(utilities), rival_(utilities + rival * distinct), counts_(counts), weights_(weights),
          distinct_(distinct), draws_(draws), pairs_((draws + 1) / 2), coarse_(hypotheses * pairs_), lowest_(hypotheses),
          highest_(hypotheses) {
        double largest = measure(hypotheses);
        if (largest == 0) return;
        if (std::is_same_v<Number, float> && !weights && !(largest < 0x1p120 && largest > 0x1p-80)) {
            // A difference, or the grid's scale, may be beyond a float: weights of one have all computed in double.
            ones_.assign(distinct, 1.0);
            weights = weights_ = ones_.data();
            largest = measure(hypotheses);
        }
        int exponent;
        std::frexp(largest * static_cast<double>(draws), &exponent);
        fine_scale_ = std::ldexp(1.0, 52 - exponent);
        const double steps = std::min(32767.0, 2147483647.0 / static_cast<double>(draws + 2) - 1);
        coarse_scale_ = steps / largest;
        // So that a step of the fine grid is, for all draws together, small compared with a step of a row's coarse grid.
        const double smallest = largest * static_cast<double>(draws) * 0x1p-30;
        std::vector<std::uint32_t> column_of;  // [draw]
        if (distinct < draws) {
            for (std::size_t c = 0; c < distinct; ++c) {
                column_of.insert(column_of.end(), counts[c], static_cast<std::uint32_t>(c));
            }
        }
        std::vector<std::int16_t> row(distinct);
        for (std::size_t h = 0; h < hypotheses; ++h) {
            if (decided(h) && !one_grid) continue;
            auto* out = reinterpret_cast<std::int16_t*>(&coarse_[h * pairs_]);
            std::int16_t* grid = distinct < draws ? row.data() : out;
            const double scale = one_grid ? coarse_scale_ : steps / std::max({-lowest_[h], highest_[h], smallest});
            if (weights) {
                round_row(utilities + h * distinct, rival_, weights, distinct, scale, grid);
            } else {
                round_row(utilities + h * distinct, rival_, distinct, static_cast<Number>(scale), grid);
            }
            for (std::size_t r = 0; r < column_of.size(); ++r) out[r] = row[column_of[r]];
        }
    }

    // Never below the rival, so every resample is won; or always below it, so every resample is lost.
    bool decided(std::size_t h) const { return lowest_[h] >= 0 || highest_[h] < 0; }
    bool wins_all(std::size_t h) const { return lowest_[h] >= 0; }

    // With one grid: steps of the coarse grid per unit of utility (times weight); 0: all hypotheses are equal.
    double coarse_scale() const { return coarse_scale_; }

    // The coarse grid, a pair of draws in each word.
    const std::int32_t* coarse(std::size_t h) const { return &coarse_[h * pairs_]; }

    // A coarse total farther from zero than this has the sign of the fine total.
    std::int32_t margin() const { return static_cast<std::int32_t>(draws_ / 2 + draws_ / 64 + 2); }

    // Whether hypothesis h wins resample `lane` of a block, on the fine grid.
    bool exact_win(std::size_t h, const std::int16_t* block, std::size_t lane) const {
        double total = 0;
        std::size_t r = 0;
        for (std::size_t c = 0; c < distinct_; ++c) {
            int times = 0;
            for (std::int64_t copy = 0; copy < counts_[c]; ++copy, ++r) times += block[count_index(r, lane)];
            if (times) total += std::nearbyint(difference(h, c) * fine_scale_) * times;
        }
        return total >= 0;
    }

  private:
    // Finds the range of each hypothesis' differences; returns the largest magnitude.
    double measure(std::size_t hypotheses) {
        double largest = 0;
        for (std::size_t h = 0; h < hypotheses; ++h) {
            const Number* row = utilities_ + h * distinct_;
            if (weights_) {
                range(row, rival_, weights_, distinct_, &lowest_[h], &highest_[h]);
            } else {
                range(row, rival_, distinct_, &lowest_[h], &highest_[h]);
            }
            largest = std::max({largest, -lowest_[h], highest_[h]});
        }
        return largest;
    }

    double difference(std::size_t h, std::size_t c) const {
        const double plain = static_cast<double>(utilities_[h * distinct_ + c]) - static_cast<double>(rival_[c]);
        return weights_ ? plain * weights_[c] : plain;
    }

    const Number* utilities_;
    const Number* rival_;
    const std::int64_t* counts_;
    const double* weights_;
    std::size_t distinct_;
    std::size_t draws_;
    std::size_t pairs_;  // of draws
    std::vector<double> ones_;  // in place of no weights
    double fine_scale_ = 0, coarse_scale_ = 0;
    std::vector<std::int32_t> coarse_;       // [hypothesis][pair of draws]
    std::vector<double> lowest_, highest_;  // [hypothesis]: weighted differences
};

// Utilities in units of 2^exponent. Doubles that are so large or so small that a difference, or a number of steps of a
// grid, would be beyond a double are brought near 1; all others, and floats, stay as they are.
template <class Number>
struct Scaled {
    const Number* data;
    int exponent = 0;
    std::vector<Number> copy;

    Scaled(const Number* utilities, std::size_t size) : data(utilities) {
        if constexpr (std::is_same_v<Number, double>) {
            double largest = 0;
            for (std::size_t i = 0; i < size; ++i) largest = std::max(largest, std::abs(utilities[i]));
            int size_of_largest;
            std::frexp(largest, &size_of_largest);
            if (std::abs(size_of_largest) < 900) return;
            exponent = size_of_largest;
            copy.resize(size);
            std::transform(utilities, utilities + size, copy.begin(), [&](double u) { return std::ldexp(u, -exponent); });
            data = copy.data();
        }
    }
};

// Weighted sums of utilities: the exact sum rounded once, so the order of the utilities changes nothing, and nor does
// adding equal ones together first.
//
// Whole weights (counts of draws) times utilities of similar size: every product is a multiple of the last bit of the
// smallest utility, no sum of them needs more than the 53 bits of a double, and plain addition is exact.
//
// Otherwise every product is split in two: a multiple of a step that is so large that sums of such multiples fit 53 bits,
// and the rest, rounded to a multiple of a second, smaller step, of which the same is true. Again all additions are exact,
// except for the last one, of the two sums. What the second step rounds away is less than 2^-65 of the largest product
// for up to a thousand products.
//
// A product of two doubles is two doubles, the rounded product and the rest. Utilities in doubles are brought near 1 by a
// power of two first, so that no sum of numbers of any size is too large.
class WeightedSum {
  public:
    WeightedSum(const double* weights, std::size_t count)
        : weights_(weights), count_(count), products_(whole_groups(count)) {
        total_ = sum_in_two_steps(std::vector<float>(count, 1.0f).data());
        const auto is_whole = [](double weight) { return weight >= 0 && weight == std::nearbyint(weight); };
        if (std::all_of(weights, weights + count, is_whole) && total_ < 1 << 24) {
            total_bits_ = std::bit_width(static_cast<std::uint32_t>(total_));
        }
    }

    // utilities[0] * weights[0] + utilities[1] * weights[1] + ..., over the total of the weights.
    double mean(const float* utilities) {
        if (total_bits_ == 0) {  // products of floats and doubles would be rounded one by one
            const std::vector<double> doubles(utilities, utilities + count_);
            return mean(doubles.data());
        }
        // A utility of exponent e is less than 2^(e+1) and a multiple of 2^(e-23).
        if (total_bits_ + exponent_range(utilities, count_) + 1 + 23 <= 53) {
            return plain_sum(utilities, weights_, count_) / total_;
        }
        return sum_in_two_steps(utilities) / total_;
    }

    double mean(const double* utilities) {
        double largest = 0, largest_product = 0;
        for (std::size_t c = 0; c < count_; ++c) largest = std::max(largest, std::abs(utilities[c]));
        if (largest == 0) return 0;
        int exponent;
        std::frexp(largest, &exponent);
        products_.resize(whole_groups(2 * count_));
        for (std::size_t c = 0; c < count_; ++c) {
            const double utility = std::ldexp(utilities[c], -exponent);
            products_[2 * c] = utility * weights_[c];
            products_[2 * c + 1] = std::fma(utility, weights_[c], -products_[2 * c]);
            largest_product = std::max(largest_product, std::abs(products_[2 * c]));
        }
        return std::ldexp(sum_of_products(largest_product, 2 * count_) / total_, exponent);
    }

  private:
    static constexpr std::size_t SUMS = 8;  // side by side, so that additions do not wait for each other
    typedef double Doubles __attribute__((vector_size(SUMS * sizeof(double))));  // compilers vectorise the loop badly

    static std::size_t whole_groups(std::size_t count) { return (count + SUMS - 1) / SUMS * SUMS; }

    double sum_in_two_steps(const float* utilities) {
        return sum_of_products(multiply(utilities, weights_, count_, products_.data()), count_);
    }

    // The sum of `products_`, `count` of them not zero and none larger than `largest`.
    double sum_of_products(double largest, std::size_t count) {
        if (largest == 0) return 0;
        int exponent;
        std::frexp(largest, &exponent);  // largest < 2^exponent
        const int growth = std::bit_width(count) + 1;  // bits that a sum may have more than a product, and one to spare
        // Doubles from 2^e up to 2^(e+1) are multiples of 2^(e-52): adding 1.5 * 2^e, and taking it away, rounds to these.
        return add_up(products_.data(), products_.size(), std::ldexp(1.5, exponent + growth),
                      std::ldexp(1.5, exponent + 2 * growth - 52));
    }

    // The largest exponent less the smallest, zeros left out.
    MBRACE_CLONES
    static int exponent_range(const float* utilities, std::size_t count) {
        std::uint32_t high = 0, low = ~std::uint32_t{0};
        for (std::size_t c = 0; c < count; ++c) {
            const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(utilities[c]) & 0x7FFFFFFFu;
            high = std::max(high, magnitude);
            low = std::min(low, magnitude - 1);  // a zero becomes the largest number
        }
        const auto exponent = [](std::uint32_t magnitude) { return std::max(static_cast<int>(magnitude >> 23), 1); };
        return high == 0 ? 0 : exponent(high) - exponent(low + 1);
    }

    MBRACE_CLONES
    static double plain_sum(const float* utilities, const double* weights, std::size_t count) {
        double sums[SUMS] = {};
        std::size_t c = 0;
        for (; c + SUMS <= count; c += SUMS) {
            for (std::size_t k = 0; k < SUMS; ++k) sums[k] += static_cast<double>(utilities[c + k]) * weights[c + k];
        }
        for (std::size_t k = 0; c + k < count; ++k) sums[k] += static_cast<double>(utilities[c + k]) * weights[c + k];
        return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }

    // Writes the products and returns the largest magnitude.
    MBRACE_CLONES
    static double multiply(const float* utilities, const double* weights, std::size_t count, double* products) {
        double largest = 0;
        for (std::size_t c = 0; c < count; ++c) {
            const double product = static_cast<double>(utilities[c]) * weights[c], magnitude = std::abs(product);
            products[c] = product;
            largest = magnitude > largest ? magnitude : largest;
        }
        return largest;
    }

    MBRACE_CLONES
    static double add_up(const double* products, std::size_t count, double round_coarse, double round_fine) {
        Doubles coarse{}, fine{};
        for (std::size_t c = 0; c < count; c += SUMS) {
            Doubles some;
            std::memcpy(&some, products + c, sizeof(some));
            const Doubles multiple = (some + round_coarse) - round_coarse;
            coarse += multiple;
            fine += ((some - multiple) + round_fine) - round_fine;
        }
        double coarse_total = 0, fine_total = 0;
        for (std::size_t k = 0; k < SUMS; ++k) coarse_total += coarse[k], fine_total += fine[k];
        return coarse_total + fine_total;
    }

    const double* weights_;
    std::size_t count_;
    std::vector<double> products_;  // whole groups of SUMS, the last filled up with zeros
    double total_;
    int total_bits_ = 0;  // of the total, if the weights are whole numbers; else 0
};

}  // namespace

void expected_utilities(const float* utilities, std::size_t hypotheses, std::size_t distinct, const double* weights,
                        double* means) {
    WeightedSum sum(weights, distinct);
    for (std::size_t h = 0; h < hypotheses; ++h) means[h] = sum.mean(utilities + h * distinct);
}

void expected_utilities(const double* utilities, std::size_t hypotheses, std::size_t distinct, const double* weights,
                        double* means) {
    WeightedSum sum(weights, distinct);
    for (std::size_t h = 0; h < hypotheses; ++h) means[h] = sum.mean(utilities + h * distinct);
}

Resamples::Resamples(std::uint64_t seed, std::uint32_t draws, std::size_t bootstraps)
    : draws_(draws), bootstraps_(bootstraps), block_size_((draws + 1) / 2 * 2 * BLOCK_RESAMPLES),
      counts_((bootstraps + BLOCK_RESAMPLES - 1) / BLOCK_RESAMPLES * block_size_) {
    Draws random(seed, draws);
    for (std::size_t b = 0; b < bootstraps; ++b) {
        std::int16_t* block = counts_.data() + b / BLOCK_RESAMPLES * block_size_;
        for (std::uint32_t d = 0; d < draws; ++d) ++block[count_index(random.next(), b % BLOCK_RESAMPLES)];
    }
}

int Resamples::count(std::size_t b, std::size_t r) const {
    return counts_[b / BLOCK_RESAMPLES * block_size_ + count_index(r, b % BLOCK_RESAMPLES)];
}

template <class Number>
void Resamples::wins(const Number* given, std::size_t hypotheses, std::size_t distinct, const std::int64_t* counts,
                     const double* weights, std::size_t rival, const double* max_losing_wins, std::int64_t* wins,
                     WinsVariant variant) const {
    const Scaled<Number> utilities(given, hypotheses * distinct);
    const Differences<Number> rows(utilities.data, hypotheses, distinct, counts, draws_, weights, rival);
    const Compare compare = compare_of(variant);
    const std::int32_t margin = rows.margin();
    std::vector<std::size_t> open;
    for (std::size_t h = 0; h < hypotheses; ++h) {
        wins[h] = rows.wins_all(h) ? static_cast<std::int64_t>(bootstraps_) : 0;
        if (!rows.decided(h)) open.push_back(h);
    }
    Certain certain[GROUP_ROWS];
    for (std::size_t first = 0; first < bootstraps_ && !open.empty(); first += BLOCK_RESAMPLES) {
        const std::int16_t* block = counts_.data() + first / BLOCK_RESAMPLES * block_size_;
        const std::size_t valid = std::min(BLOCK_RESAMPLES, bootstraps_ - first);
        const std::uint64_t present = ~std::uint64_t{0} >> (BLOCK_RESAMPLES - valid);
        for (std::size_t i = 0; i < open.size(); i += GROUP_ROWS) {
            const std::int32_t* group[GROUP_ROWS];
            const std::size_t size = std::min(GROUP_ROWS, open.size() - i);
            for (std::size_t row = 0; row < GROUP_ROWS; ++row) group[row] = rows.coarse(open[i + std::min(row, size - 1)]);
            compare(group, (draws_ + 1) / 2, block, margin, certain);
            for (std::size_t row = 0; row < size; ++row) {
                const std::size_t h = open[i + row];
                wins[h] += std::popcount(certain[row].above & present);
                std::uint64_t unsure = present & ~(certain[row].above | certain[row].below);
                for (; unsure; unsure &= unsure - 1) {
                    wins[h] += rows.exact_win(h, block, static_cast<std::size_t>(std::countr_zero(unsure)));
                }
            }
        }
        const double left = static_cast<double>(bootstraps_ - first - valid);
        if (max_losing_wins) std::erase_if(open, [&](std::size_t h) {
            const double won = static_cast<double>(wins[h]);
            return won > *max_losing_wins || won + left <= *max_losing_wins;
        });
    }
}

namespace {

// Totals on the coarse grid of one hypothesis in the resamples of a block.
MBRACE_CLONES
void coarse_totals(const std::int32_t* row, std::size_t pairs, const std::int16_t* block, std::int32_t* totals) {
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

template <class Number>
double Resamples::regret(const Number* given, std::size_t hypotheses, std::size_t distinct,
                         const std::int64_t* counts, const double* weights, const std::vector<std::int64_t>& leaders,
                         double limit) const {
    const std::size_t nbest = leaders.size();
    std::vector<double> draw_weights(weights ? distinct : 0);
    double total_weight = static_cast<double>(draws_);
    if (weights) {
        total_weight = std::accumulate(weights, weights + distinct, 0.0);
        for (std::size_t c = 0; c < distinct; ++c) draw_weights[c] = weights[c] / static_cast<double>(counts[c]);
    }
    const Scaled<Number> utilities(given, hypotheses * distinct);
    const Differences<Number> rows(utilities.data, hypotheses, distinct, counts, draws_,
                                   weights ? draw_weights.data() : nullptr, static_cast<std::size_t>(leaders[0]), true);
    if (rows.coarse_scale() == 0) return 0;
    const double unit = rows.coarse_scale() * total_weight * static_cast<double>(bootstraps_ * nbest);
    const double most = std::ldexp(limit, -utilities.exponent) * unit;  // compared with whole numbers that only grow
    std::vector<std::int32_t> totals(hypotheses * BLOCK_RESAMPLES), column(hypotheses);
    std::int64_t sum = 0;
    for (std::size_t first = 0; first < bootstraps_; first += BLOCK_RESAMPLES) {
        const std::int16_t* block = counts_.data() + first / BLOCK_RESAMPLES * block_size_;
        for (std::size_t h = 0; h < hypotheses; ++h) {
            coarse_totals(rows.coarse(h), (draws_ + 1) / 2, block, &totals[h * BLOCK_RESAMPLES]);
        }
        const std::size_t valid = std::min(BLOCK_RESAMPLES, bootstraps_ - first);
        for (std::size_t lane = 0; lane < valid; ++lane) {
            for (std::size_t h = 0; h < hypotheses; ++h) column[h] = totals[h * BLOCK_RESAMPLES + lane];
            for (const std::int64_t leader : leaders) sum -= column[leader];
            if (nbest < hypotheses) {
                std::nth_element(column.begin(), column.begin() + nbest - 1, column.end(), std::greater<>());
            }
            for (std::size_t k = 0; k < nbest; ++k) sum += column[k];
        }
        if (limit >= 0 && static_cast<double>(sum) > most) break;
    }
    return std::ldexp(static_cast<double>(sum) / unit, utilities.exponent);
}

namespace {

// The `count` best rows by mean, of equal ones the first; best first.
std::vector<std::int64_t> ranking(const double* means, std::size_t rows, std::size_t count) {
    std::vector<std::int64_t> ranked(rows);
    std::iota(ranked.begin(), ranked.end(), 0);
    count = std::min(count, rows);
    std::partial_sort(ranked.begin(), ranked.begin() + count, ranked.end(), [&](std::int64_t a, std::int64_t b) {
        return means[a] != means[b] ? means[a] > means[b] : a < b;
    });
    ranked.resize(count);
    return ranked;
}

}  // namespace

std::vector<std::int64_t> best_rows(const std::vector<double>& means, std::size_t count) {
    std::vector<std::int64_t> rows = ranking(means.data(), means.size(), count);
    std::sort(rows.begin(), rows.end());
    return rows;
}

template <class Number>
std::vector<std::int64_t> decide(const Resamples* resamples, const Number* utilities, std::size_t hypotheses,
                                 std::size_t distinct, const std::int64_t* counts, const double* weights,
                                 std::size_t nbest, double max_losing_wins, const double* means) {
    std::vector<double> draw_weights(weights ? distinct : 0);  // of one copy
    for (std::size_t c = 0; c < draw_weights.size(); ++c) draw_weights[c] = weights[c] / static_cast<double>(counts[c]);
    std::vector<std::int64_t> survivors(hypotheses);
    std::iota(survivors.begin(), survivors.end(), 0);
    if (!resamples || hypotheses <= nbest) return survivors;
    const std::vector<std::int64_t> best = ranking(means, hypotheses, nbest);
    std::vector<std::int64_t> wins(hypotheses);
    resamples->wins(utilities, hypotheses, distinct, counts, weights ? draw_weights.data() : nullptr, best.back(),
                    &max_losing_wins, wins.data());
    for (const std::int64_t h : best) wins[h] = std::numeric_limits<std::int64_t>::max();
    std::erase_if(survivors, [&](std::int64_t h) { return static_cast<double>(wins[h]) <= max_losing_wins; });
    return survivors;
}

template void Resamples::wins(const float*, std::size_t, std::size_t, const std::int64_t*, const double*, std::size_t,
                              const double*, std::int64_t*, WinsVariant) const;
template void Resamples::wins(const double*, std::size_t, std::size_t, const std::int64_t*, const double*, std::size_t,
                              const double*, std::int64_t*, WinsVariant) const;
template double Resamples::regret(const float*, std::size_t, std::size_t, const std::int64_t*, const double*,
                                  const std::vector<std::int64_t>&, double) const;
template double Resamples::regret(const double*, std::size_t, std::size_t, const std::int64_t*, const double*,
                                  const std::vector<std::int64_t>&, double) const;
template std::vector<std::int64_t> decide(const Resamples*, const float*, std::size_t, std::size_t, const std::int64_t*,
                                          const double*, std::size_t, double, const double*);
template std::vector<std::int64_t> decide(const Resamples*, const double*, std::size_t, std::size_t, const std::int64_t*,
                                          const double*, std::size_t, double, const double*);

}  // namespace mbrace
