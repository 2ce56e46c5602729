// Each hypothesis' utilities minus the rival's, rounded so that sums over a resample are exact, or fast.
//
// A hypothesis wins a resample if its differences from the rival add up to zero or more there. Differences are rounded to
// whole steps, on two grids. The fine grid has 52 bits for the largest possible total over a resample, so totals in double
// are exact: no order of addition changes them, and a hypothesis equal to the rival ties exactly. The coarse grid has 15
// bits per difference (fewer if totals would not fit 32 bits), so that totals are sums of products of 16-bit integers.
//
// A coarse total differs from the fine one by at most half a step per draw, and a little for the rounding of differences:
// only totals closer to zero than this margin are added up again on the fine grid. Example: in steps of 0.1, a difference
// of 0.26 is 3 steps and one of -0.22 is -2. Over 10 draws the margin is 7 steps: a total of 8 is a sure win, one of -8 a
// sure loss, and for 7, 0 or -7 the fine grid decides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mbrace {

// Differences times weights. Without weights the coarse grid is computed in float: the sign of a difference is exact there
// too. Each hypothesis has a coarse grid of its own, so that few totals of one that is nearly the rival are within the
// margin; with `one_grid` all have the same, and their totals can be compared.
template <class Number>  // float or double
class Differences {
  public:
    // utilities: (hypotheses, distinct); counts: (distinct,) how often each pseudo-reference was drawn, `draws` in all;
    // weights: (distinct,) the weight of a single draw; null: all draws weigh the same.
    Differences(const Number* utilities, std::size_t hypotheses, std::size_t distinct, const std::int64_t* counts,
                std::size_t draws, const double* weights, std::size_t rival, bool one_grid = false);

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
    bool exact_win(std::size_t h, const std::int16_t* block, std::size_t lane) const;

  private:
    // Finds the range of each hypothesis' differences; returns the largest magnitude.
    double measure(std::size_t hypotheses);

    const Number* utilities_;
    const Number* rival_;
    const std::int64_t* counts_;
    const double* weights_;
    std::size_t distinct_;
    std::size_t draws_;
    std::size_t pairs_;         // of draws
    std::vector<double> ones_;  // in place of no weights
    double fine_scale_ = 0, coarse_scale_ = 0;
    std::vector<std::int32_t> coarse_;      // [hypothesis][pair of draws]
    std::vector<double> lowest_, highest_;  // [hypothesis]: weighted differences
};

// Utilities in units of 2^exponent. Doubles that are so large or so small that a difference, or a number of steps of a
// grid, would be beyond a double are brought near 1; all others, and floats, stay as they are.
template <class Number>  // float or double
struct Scaled {
    const Number* data;
    int exponent = 0;
    std::vector<Number> copy;

    Scaled(const Number* utilities, std::size_t size);
};

}  // namespace mbrace
