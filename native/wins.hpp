// Who beats the leader in how many bootstrap resamples (Algorithm 2, lines 4 to 8), by counts and exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mbrace {

enum class WinsVariant { best, portable };  // instruction sets; both give the same wins

// Resamples of one size, as counts: how often draw r is in resample b. They depend on the seed, the sample size and
// their number alone, so one object serves every sentence of a run. Stored in blocks of kLanes resamples.
class Resamples {
  public:
    static constexpr std::size_t kLanes = 64;

    Resamples(std::uint64_t seed, std::uint32_t draws, std::size_t bootstraps);

    std::size_t draws() const { return draws_; }
    std::size_t bootstraps() const { return bootstraps_; }
    int count(std::size_t b, std::size_t r) const;

    // For each hypothesis the resamples in which its total utility is at least the rival's.
    // utilities: hypotheses x distinct; counts: how often each distinct pseudo-reference was drawn, `draws` in all;
    // weights: distinct, of a single draw; none: all are equal.
    // A hypothesis with more than `enough` wins, or too few resamples left to get there, is not counted further;
    // without `enough` all are counted to the end.
    void wins(const float* utilities, std::size_t hypotheses, std::size_t distinct, const std::int64_t* counts,
              const double* weights, std::size_t rival, const double* enough, std::int64_t* wins,
              WinsVariant variant = WinsVariant::best) const;

  private:
    std::size_t draws_;
    std::size_t bootstraps_;
    std::size_t block_;  // numbers in a block
    std::vector<std::int16_t> counts_;
};

// Expected utilities: the weighted sum of each row of hypotheses x distinct. The same bits on every machine.
void expected_utilities(const float* utilities, std::size_t hypotheses, std::size_t distinct, const double* weights,
                        double* means);

// One step of a race: writes expected utilities to `means` and returns, in order, the hypotheses that stay: the `nbest`, and
// those that win more than `enough` resamples against the last of these; all where there are no resamples.
// `weights`: shares in the expectation; none: every draw weighs the same.
std::vector<std::int64_t> decide(const Resamples* resamples, const float* utilities, std::size_t hypotheses,
                                 std::size_t distinct, const std::int64_t* counts, const double* weights,
                                 std::size_t nbest, double enough, double* means);

}  // namespace mbrace
