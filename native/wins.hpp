// In how many bootstrap resamples each hypothesis beats the leader (Algorithm 2, lines 4 to 8), without rounding errors;
// expected utilities; and which hypotheses a step of the race prunes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mbrace {

enum class WinsVariant { best, portable };  // instruction sets; both give the same numbers of wins

// Bootstrap resamples of `draws` pseudo-references, as counts: how often draw r is in resample b. They depend only on the
// seed, the number of draws and the number of resamples, so one object serves every sentence of a run.
class Resamples {
  public:
    static constexpr std::size_t BLOCK_RESAMPLES = 64;  // resamples whose counts are stored together

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

    // The expected regret of answering with `leaders` (growing row indexes) now: the mean over resamples of the best
    // hypotheses' expected utility minus the leaders', per leader. At most a few hundred-thousandths of the largest
    // difference between two utilities off (differences are rounded to 16 bits), and the same on every machine.
    // Once it is sure to be more than `limit`, some number above it is returned; a negative limit is none.
    template <class Number>  // float or double
    double regret(const Number* utilities, std::size_t hypotheses, std::size_t distinct, const std::int64_t* counts,
                  const double* weights, const std::vector<std::int64_t>& leaders, double limit) const;

  private:
    std::size_t draws_;
    std::size_t bootstraps_;
    std::size_t block_size_;  // numbers in a block
    std::vector<std::int16_t> counts_;  // block after block; within one see count_index in wins.cpp
};

// Expected utilities: for each row of (hypotheses, distinct), the sum of weight times utility over the sum of the weights.
// Sums are exact and rounded once, the division comes last: the result is the same on every machine and in every order
// of the columns, and hypotheses whose weighted utilities add up to the same number have equal expected utilities.
void expected_utilities(const float* utilities, std::size_t hypotheses, std::size_t distinct, const double* weights,
                        double* means);
void expected_utilities(const double* utilities, std::size_t hypotheses, std::size_t distinct, const double* weights,
                        double* means);

// The `count` best rows by mean (of equal ones the first), in growing order.
std::vector<std::int64_t> best_rows(const std::vector<double>& means, std::size_t count);

// One step of a race: returns the survivors, in growing order: the `nbest` by expected utility, `means` (of equal ones the
// first), and those that win more than `max_losing_wins` resamples against the last of these; all if there are no
// resamples. `weights`: of each pseudo-reference, its copies together; null: its count.
template <class Number>  // float or double
std::vector<std::int64_t> decide(const Resamples* resamples, const Number* utilities, std::size_t hypotheses,
                                 std::size_t distinct, const std::int64_t* counts, const double* weights,
                                 std::size_t nbest, double max_losing_wins, const double* means);

}  // namespace mbrace
