// A forecast of the expected utilities of hypotheses that were not scored, from those of hypotheses that were.
//
// Hypotheses that are alike (likeness.hpp) have similar expected utilities. The forecast is that of a Gaussian process whose
// covariance is the likeness: for each hypothesis a mean and a variance, given the expected utilities known so far. The
// level, which is the forecast for a hypothesis unlike all others, is estimated with them (generalised least squares): the
// hypotheses that were let in are better than the others, so that their plain average would be too high. The gain from
// scoring a hypothesis is its *expected improvement*: the mean of max(0, its utility - the rival's).
//
// The Cholesky factor of the covariance of the scored hypotheses grows by a row with each hypothesis that enters, and with it what
// it says about all others, so that a race costs (scored x scored x hypotheses) operations altogether.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "text.hpp"

namespace mbrace {

class Forecast {
  public:
    // The part of a hypothesis' variance that its likeness to others does not explain.
    static constexpr double NOISE = 0.05;

    explicit Forecast(const std::vector<Text>& texts);

    std::size_t size() const { return size_; }
    std::size_t entered() const { return entered_.size(); }

    // Lets the first hypotheses in: the first of the list, then in turn the one that is least like those before it, and the one
    // that says most about all others. In growing order.
    std::vector<std::int64_t> start(std::size_t count);

    // Lets in up to `most` hypotheses whose expected improvement on `rival` is more than `least` standard deviations of `means`,
    // which are the expected utilities of those that entered so far, in their order: numbers around 1 in size. Each takes those
    // let in before it into account: what they will say about it need not be said twice. Nobody enters where all are equal.
    std::vector<std::int64_t> next(const double* means, double rival, double least, std::size_t most);

  private:
    void enter(std::size_t row);

    std::size_t size_;
    std::vector<float> likeness_;       // (size, size)
    std::vector<std::size_t> entered_;  // in their order
    std::vector<bool> has_entered_;
    std::vector<double> unexplained_;  // (size): variance given those that entered
    std::vector<double> factors_;      // (entered, size): column k of the factor, for all hypotheses
    std::vector<double> pivots_;       // (entered): its diagonal
    std::vector<double> unlevelled_;   // (size): what is left of a one for each hypothesis when the level is solved for
    std::vector<double> ones_;         // (entered): the factor's solution for ones
};

}  // namespace mbrace
