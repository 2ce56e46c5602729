// Who beats the leader in how many bootstrap resamples (Algorithm 2, lines 4 to 8), by counts and exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mbrace {

// Resamples of one size, as counts: how often draw r is in resample b. They depend on the seed, the sample size and
// their number alone, so one object serves every sentence of a run. Stored in blocks of kLanes resamples, draw by draw.
class Resamples {
  public:
    static constexpr std::size_t kLanes = 64;

    Resamples(std::uint64_t seed, std::uint32_t draws, std::size_t bootstraps);

    std::size_t draws() const { return draws_; }
    std::size_t bootstraps() const { return bootstraps_; }
    float count(std::size_t b, std::size_t r) const { return counts_[(b / kLanes * draws_ + r) * kLanes + b % kLanes]; }

    // For each hypothesis the resamples in which its total utility is at least the rival's.
    // utilities: hypotheses x distinct; owners: draws, each the distinct pseudo-reference it drew; weights: distinct.
    // A hypothesis with more than `enough` wins, or too few resamples left to get there, is not counted further; if
    // `enough` is not a number, all are counted to the end.
    void wins(const float* utilities, std::size_t hypotheses, std::size_t distinct, const std::int64_t* owners,
              const double* weights, std::size_t rival, double enough, std::int64_t* wins) const;

  private:
    std::size_t draws_;
    std::size_t bootstraps_;
    std::vector<float> counts_;
};

}  // namespace mbrace
