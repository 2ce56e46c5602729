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

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "likeness.hpp"
#include "starters.hpp"

namespace mbrace {

class Forecast {
  public:
    // The part of a hypothesis' variance that its likeness to others does not explain.
    static constexpr double NOISE = 0.05;

    explicit Forecast(const std::vector<Text>& texts)
        : size_(texts.size()), likeness_(mbrace::likeness(texts)), has_entered_(size_), unexplained_(size_),
          unlevelled_(size_, 1.0) {
        for (std::size_t i = 0; i < size_; ++i) unexplained_[i] = likeness_[i * size_ + i];
    }

    std::size_t size() const { return size_; }
    std::size_t entered() const { return entered_.size(); }

    // Lets the first hypotheses in: the first of the list, then in turn the one that is least like those before it, and the one
    // that says most about all others. In growing order.
    std::vector<std::int64_t> start(std::size_t count) {
        std::vector<std::int64_t> chosen = starters(likeness_, size_, count, NOISE);
        std::sort(chosen.begin(), chosen.end());
        for (const std::int64_t row : chosen) enter(static_cast<std::size_t>(row));
        return chosen;
    }

    // Lets in up to `most` hypotheses whose expected improvement on `rival` is more than `least` standard deviations of `means`,
    // which are the expected utilities of those that entered so far, in their order: numbers around 1 in size. Each takes those
    // let in before it into account: what they will say about it need not be said twice. Nobody enters where all are equal.
    std::vector<std::int64_t> next(const double* means, double rival, double least, std::size_t most) {
        const std::size_t known = entered_.size();
        std::vector<std::int64_t> chosen;
        if (std::all_of(means, means + known, [&](double value) { return value == means[0]; })) return chosen;
        const double centre = mean(means, known);
        double squared = 0, fitted = 0, of_ones = 0, both = 0;
        std::vector<double> solved(known);
        for (std::size_t j = 0; j < known; ++j) {
            double value = means[j] - centre;
            squared += value * value;
            for (std::size_t k = 0; k < j; ++k) value -= factors_[k * size_ + entered_[j]] * solved[k];
            solved[j] = value / pivots_[j];
            of_ones += ones_[j] * ones_[j];
            both += ones_[j] * solved[j];
        }
        const double above = both / of_ones;  // the level, above the centre
        std::vector<double> forecast(size_, centre + above);
        for (std::size_t j = 0; j < known; ++j) {
            const double value = solved[j] - above * ones_[j];
            fitted += value * value;
            for (std::size_t i = 0; i < size_; ++i) forecast[i] += value * factors_[j * size_ + i];
        }
        const double spread = std::sqrt(squared / static_cast<double>(known));
        const double scale = std::sqrt(fitted / static_cast<double>(known));
        // A gain only falls with those let in, since the deviation does: one that was too small (and is so by more than rounding
        // could change) need not be computed again.
        std::vector<double> last_gains(size_, std::numeric_limits<double>::infinity());
        while (chosen.size() < most) {
            std::size_t best = size_;
            double highest = least * spread;
            for (std::size_t i = 0; i < size_; ++i) {
                if (has_entered_[i] || last_gains[i] * (1 + 1e-9) + 1e-9 * spread < highest) continue;
                const double deviation = scale * std::sqrt(std::max(unexplained_[i], 0.0));
                const double gain = last_gains[i] = expected_improvement(forecast[i] - rival, deviation);
                if (gain > highest) highest = gain, best = i;
            }
            if (best == size_) break;
            enter(best);
            chosen.push_back(static_cast<std::int64_t>(best));
        }
        return chosen;
    }

  private:
    void enter(std::size_t row) {
        const double pivot = std::sqrt(std::max(unexplained_[row], 0.0) + NOISE);
        const std::size_t known = entered_.size();
        std::vector<double> factor(size_);
        for (std::size_t i = 0; i < size_; ++i) factor[i] = likeness_[row * size_ + i];
        for (std::size_t k = 0; k < known; ++k) {
            const double* earlier = &factors_[k * size_];
            const double own = earlier[row];
            for (std::size_t i = 0; i < size_; ++i) factor[i] -= own * earlier[i];
        }
        ones_.push_back(unlevelled_[row] / pivot);
        for (std::size_t i = 0; i < size_; ++i) {
            factor[i] /= pivot;
            unexplained_[i] -= factor[i] * factor[i];
            unlevelled_[i] -= factor[i] * ones_.back();
        }
        factors_.insert(factors_.end(), factor.begin(), factor.end());
        pivots_.push_back(pivot);
        entered_.push_back(row);
        has_entered_[row] = true;
    }

    static double mean(const double* values, std::size_t count) {
        double sum = 0;
        for (std::size_t i = 0; i < count; ++i) sum += values[i] / static_cast<double>(count);
        return sum;
    }

    // The mean of max(0, x) for a normal x.
    static double expected_improvement(double mean, double deviation) {
        if (!(deviation > 0)) return std::max(mean, 0.0);
        const double z = mean / deviation;
        const double density = std::exp(-z * z / 2) * 0.3989422804014327, below = std::erfc(-z * 0.7071067811865476) / 2;
        return deviation * (z * below + density);
    }

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
