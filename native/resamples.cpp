// Wins are counted in three steps, each only for what the one before left open. A hypothesis that is never below its rival,
// or always, wins or loses all resamples. For others, totals of rounded differences are found for 64 resamples at a time
// (resample_blocks.hpp). Where such a total is too close to zero to tell, the exact sum decides (differences.hpp).
#include "resamples.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

#include "differences.hpp"
#include "random_draws.hpp"

namespace mbrace {

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
        if (!max_losing_wins) continue;
        std::erase_if(open, [&](std::size_t h) {
            const double won = static_cast<double>(wins[h]);
            return won > *max_losing_wins || won + left <= *max_losing_wins;
        });
    }
}

template <class Number>
double Resamples::regret(const Number* given, std::size_t hypotheses, std::size_t distinct, const std::int64_t* counts,
                         const double* weights, const std::vector<std::int64_t>& leaders, double limit) const {
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
            block_totals(rows.coarse(h), (draws_ + 1) / 2, block, &totals[h * BLOCK_RESAMPLES]);
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

template void Resamples::wins(const float*, std::size_t, std::size_t, const std::int64_t*, const double*, std::size_t,
                              const double*, std::int64_t*, WinsVariant) const;
template void Resamples::wins(const double*, std::size_t, std::size_t, const std::int64_t*, const double*, std::size_t,
                              const double*, std::int64_t*, WinsVariant) const;
template double Resamples::regret(const float*, std::size_t, std::size_t, const std::int64_t*, const double*,
                                  const std::vector<std::int64_t>&, double) const;
template double Resamples::regret(const double*, std::size_t, std::size_t, const std::int64_t*, const double*,
                                  const std::vector<std::int64_t>&, double) const;

}  // namespace mbrace
