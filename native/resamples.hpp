// Bootstrap resamples, and what is estimated from them: in how many each hypothesis beats the leader (Algorithm 2, lines 4
// to 8), and the regret of answering now. Counts of wins are exact: no rounding error decides one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "resample_blocks.hpp"

namespace mbrace {

// Bootstrap resamples of `draws` pseudo-references, as counts: how often draw r is in resample b. They depend only on the
// seed, the number of draws and the number of resamples, so one object serves every sentence of a run.
class Resamples {
  public:
    Resamples(std::uint64_t seed, std::uint32_t draws, std::size_t bootstraps);

    std::size_t draws() const { return draws_; }
    std::size_t bootstraps() const { return bootstraps_; }
    int count(std::size_t b, std::size_t r) const;

    // Writes for each hypothesis the number of resamples in which its total utility is at least the rival's.
    // utilities: (hypotheses, distinct); counts: (distinct,) how often each pseudo-reference was drawn, `draws` in all;
    // weights: (distinct,) the weight of a single draw; null: all draws weigh the same.
    // max_losing_wins: a hypothesis is pruned at or below this count, so counting stops for a hypothesis that is above it,
    // or that cannot get above it with the resamples that are left; null: everything is counted.
    template <class Number>  // float or double
    void wins(const Number* utilities, std::size_t hypotheses, std::size_t distinct, const std::int64_t* counts,
              const double* weights, std::size_t rival, const double* max_losing_wins, std::int64_t* wins,
              WinsVariant variant = WinsVariant::best) const;

    // The expected regret of answering with `leaders` (ascending rows) now: the mean over resamples of the best hypotheses'
    // expected utility minus the leaders', per leader. Its error is at most a few hundred-thousandths of the largest
    // difference between two utilities (differences are rounded to 16 bits), and it is the same on every machine. As soon
    // as it is certain to be above `limit`, some number above `limit` is returned; a negative limit means no limit.
    template <class Number>  // float or double
    double regret(const Number* utilities, std::size_t hypotheses, std::size_t distinct, const std::int64_t* counts,
                  const double* weights, const std::vector<std::int64_t>& leaders, double limit) const;

  private:
    std::size_t draws_;
    std::size_t bootstraps_;
    std::size_t block_size_;            // numbers in a block
    std::vector<std::int16_t> counts_;  // block after block; within one see count_index
};

}  // namespace mbrace
