#include "wins.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bootstrap.hpp"

// Sums here are exact (see `Differences`), so the instruction set cannot change a result: let the compiler make one
// clone for each that pays.
#if defined(__x86_64__) && defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MBRACE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MBRACE_CLONES
#endif

namespace mbrace {
namespace {

constexpr std::size_t kLanes = Resamples::kLanes;
constexpr std::size_t kRows = 4;  // hypotheses at a time: each block of counts is loaded once for all of them

typedef float Vector __attribute__((vector_size(64)));
typedef float Loaded __attribute__((vector_size(64), aligned(4)));  // as it lies in memory
constexpr std::size_t kVectors = kLanes * sizeof(float) / sizeof(Vector);

// Totals of kRows hypotheses in each resample of a block. Rows and counts are whole numbers and totals stay below 2^24,
// so float sums are exact.
MBRACE_CLONES
void block_totals(const float* const* rows, std::size_t draws, const float* block, float* totals) {
    Vector sums[kRows][kVectors] = {};
    for (std::size_t r = 0; r < draws; ++r) {
        const Loaded* counts = reinterpret_cast<const Loaded*>(block + r * kLanes);
        const float d0 = rows[0][r], d1 = rows[1][r], d2 = rows[2][r], d3 = rows[3][r];
        for (std::size_t v = 0; v < kVectors; ++v) {
            sums[0][v] += d0 * counts[v];
            sums[1][v] += d1 * counts[v];
            sums[2][v] += d2 * counts[v];
            sums[3][v] += d3 * counts[v];
        }
    }
    std::memcpy(totals, sums, sizeof(sums));
}

// Lanes above `margin` are wins, lanes below -margin are not; the number of those between goes to `unsure`.
MBRACE_CLONES
std::size_t sure_wins(const float* totals, std::size_t valid, float margin, std::size_t* unsure) {
    std::uint32_t above = 0, below = 0;
    for (std::size_t lane = 0; lane < valid; ++lane) {
        above += totals[lane] > margin;
        below += totals[lane] < -margin;
    }
    *unsure = valid - above - below;
    return above;
}

// Utilities less the rival's, weighted, draw by draw, as whole numbers on two grids.
// The fine grid has 52 bits for the largest possible total over a resample, so totals in double are exact: no order of
// addition changes them, and a hypothesis equal to the rival ties exactly. The coarse grid has 24 bits, so totals in
// float are exact too and twice as fast; they are off the fine ones by at most half a step a draw, and only totals
// nearer to zero than that are added up again on the fine grid.
struct Differences {
    std::vector<double> fine;
    std::vector<float> coarse;
    std::vector<bool> equal;  // to the rival, in every column

    Differences(const float* utilities, std::size_t hypotheses, std::size_t distinct, const std::int64_t* owners,
                std::size_t draws, const double* weights, std::size_t rival)
        : fine(hypotheses * distinct), coarse(hypotheses * draws), equal(hypotheses) {
        const float* best = utilities + rival * distinct;
        double largest = 0;
        for (std::size_t h = 0; h < hypotheses; ++h) {
            double largest_of_row = 0;
            for (std::size_t c = 0; c < distinct; ++c) {
                const double difference =
                    (static_cast<double>(utilities[h * distinct + c]) - static_cast<double>(best[c])) * weights[c];
                fine[h * distinct + c] = difference;
                largest_of_row = std::max(largest_of_row, std::fabs(difference));
            }
            equal[h] = largest_of_row == 0;
            largest = std::max(largest, largest_of_row);
        }
        if (largest == 0) return;
        int exponent;
        std::frexp(largest * static_cast<double>(draws), &exponent);
        round_to_grids(hypotheses, distinct, owners, draws, std::ldexp(1.0, 52 - exponent),
                       std::ldexp(1.0, 23 - exponent));
    }

  private:
    void round_to_grids(std::size_t hypotheses, std::size_t distinct, const std::int64_t* owners, std::size_t draws,
                        double fine_scale, double coarse_scale) {
        std::vector<float> row(distinct);
        for (std::size_t h = 0; h < hypotheses; ++h) {
            double* values = &fine[h * distinct];
            round_row(values, row.data(), distinct, fine_scale, coarse_scale);
            for (std::size_t r = 0; r < draws; ++r) coarse[h * draws + r] = row[owners[r]];
        }
    }

    MBRACE_CLONES
    static void round_row(double* values, float* row, std::size_t distinct, double fine_scale, double coarse_scale) {
        for (std::size_t c = 0; c < distinct; ++c) {
            row[c] = static_cast<float>(std::nearbyint(values[c] * coarse_scale));
            values[c] = std::nearbyint(values[c] * fine_scale);
        }
    }
};

}  // namespace

Resamples::Resamples(std::uint64_t seed, std::uint32_t draws, std::size_t bootstraps)
    : draws_(draws), bootstraps_(bootstraps), counts_((bootstraps + kLanes - 1) / kLanes * kLanes * draws) {
    Draws random(seed, draws);
    for (std::size_t b = 0; b < bootstraps; ++b) {
        float* lane = counts_.data() + b / kLanes * draws * kLanes + b % kLanes;
        for (std::uint32_t d = 0; d < draws; ++d) lane[random.next() * kLanes] += 1.0f;
    }
}

void Resamples::wins(const float* utilities, std::size_t hypotheses, std::size_t distinct, const std::int64_t* owners,
                     const double* weights, std::size_t rival, double enough, std::int64_t* wins) const {
    const Differences rows(utilities, hypotheses, distinct, owners, draws_, weights, rival);
    const float margin = static_cast<float>(draws_) / 2 + 1;
    std::vector<std::size_t> open;
    for (std::size_t h = 0; h < hypotheses; ++h) {
        wins[h] = rows.equal[h] ? static_cast<std::int64_t>(bootstraps_) : 0;
        if (!rows.equal[h]) open.push_back(h);
    }
    float totals[kRows][kLanes];
    for (std::size_t first = 0; first < bootstraps_ && !open.empty(); first += kLanes) {
        const float* block = counts_.data() + first * draws_;
        const std::size_t valid = std::min(kLanes, bootstraps_ - first);
        for (std::size_t i = 0; i < open.size(); i += kRows) {
            const float* group[kRows];
            const std::size_t size = std::min(kRows, open.size() - i);
            for (std::size_t row = 0; row < kRows; ++row) {
                group[row] = &rows.coarse[open[i + std::min(row, size - 1)] * draws_];
            }
            block_totals(group, draws_, block, totals[0]);
            for (std::size_t row = 0; row < size; ++row) {
                const std::size_t h = open[i + row];
                std::size_t unsure;
                wins[h] += static_cast<std::int64_t>(sure_wins(totals[row], valid, margin, &unsure));
                for (std::size_t lane = 0; unsure > 0 && lane < valid; ++lane) {
                    if (std::fabs(totals[row][lane]) > margin) continue;
                    --unsure;
                    double total = 0;
                    for (std::size_t r = 0; r < draws_; ++r) {
                        total += rows.fine[h * distinct + owners[r]] * static_cast<double>(block[r * kLanes + lane]);
                    }
                    wins[h] += total >= 0;
                }
            }
        }
        const double left = static_cast<double>(bootstraps_ - first - valid);
        std::erase_if(open, [&](std::size_t h) {
            const double won = static_cast<double>(wins[h]);
            return won > enough || won + left <= enough;
        });
    }
}

}  // namespace mbrace
