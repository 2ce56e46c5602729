#include "forecast.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "clones.hpp"
#include "likeness.hpp"
#include "pool.hpp"

namespace mbrace {
namespace {

constexpr std::size_t WIDTH = 8;
typedef float Wide __attribute__((vector_size(WIDTH * sizeof(float))));

// Subtracts from a row what two choices, with the factors `first` and `second`, explain of it; returns the sum of the
// squares of what is left.
MBRACE_CLONES
double explain(float* row, std::size_t size, const float* first, float own_first, const float* second, float own_second) {
    Wide sums = {};
    std::size_t i = 0;
    for (; i + WIDTH <= size; i += WIDTH) {
        Wide left, by_first, by_second;
        std::memcpy(&left, row + i, sizeof left);
        std::memcpy(&by_first, first + i, sizeof left);
        std::memcpy(&by_second, second + i, sizeof left);
        left -= own_first * by_first;
        left -= own_second * by_second;
        sums += left * left;
        std::memcpy(row + i, &left, sizeof left);
    }
    double sum = 0;
    for (std::size_t lane = 0; lane < WIDTH; ++lane) sum += sums[lane];
    for (; i < size; ++i) {
        row[i] -= own_first * first[i];
        row[i] -= own_second * second[i];
        sum += row[i] * row[i];
    }
    return sum;
}

std::size_t largest(const std::vector<double>& worth, const std::vector<bool>& taken) {
    std::size_t best = 0;
    while (taken[best]) ++best;
    for (std::size_t i = best + 1; i < worth.size(); ++i) {
        if (!taken[i] && worth[i] > worth[best]) best = i;
    }
    return best;
}

// Up to `count` of `size` hypotheses, in the order in which they are chosen: the first, then by turns the one that those
// before it explain least, and the one that explains most of what those before it leave unexplained of all. `likeness`,
// (size, size), is their covariance, and `noise` is added to the variance of each.
//
// It is a pivoted Cholesky factorisation of the likeness. Each choice subtracts what it explains from the whole table. Every second choice needs only the diagonal, so the table is
// updated only once for two choices.
std::vector<std::int64_t> starters(const std::vector<float>& likeness, std::size_t size, std::size_t count, double noise) {
    Vector<float> left(likeness.begin(), likeness.end());
    std::vector<float> diagonal(size), factors[2] = {std::vector<float>(size), std::vector<float>(size)};
    std::vector<double> worth(size);
    std::vector<std::int64_t> chosen;
    std::vector<bool> taken(size);
    for (std::size_t i = 0; i < size; ++i) diagonal[i] = left[i * size + i];
    while (chosen.size() < std::min(count, size)) {
        const std::size_t turn = chosen.size() % 2;
        std::size_t best = 0;
        if (turn == 1) {
            for (std::size_t i = 0; i < size; ++i) worth[i] = diagonal[i];
            best = largest(worth, taken);
        } else if (!chosen.empty()) {
            for (std::size_t i = 0; i < size; ++i) {
                if (taken[i]) continue;
                worth[i] =
                    explain(&left[i * size], size, factors[0].data(), factors[0][i], factors[1].data(), factors[1][i]);
                worth[i] /= diagonal[i] + noise;
            }
            best = largest(worth, taken);
        }
        const float scale = 1 / std::sqrt(std::max(diagonal[best], 0.0f) + static_cast<float>(noise));
        const float own = factors[0][best];
        for (std::size_t i = 0; i < size; ++i) {
            float unexplained = left[best * size + i];
            if (turn == 1) unexplained -= own * factors[0][i];  // not subtracted from the table yet
            factors[turn][i] = unexplained * scale;
            diagonal[i] -= factors[turn][i] * factors[turn][i];
        }
        taken[best] = true;
        chosen.push_back(static_cast<std::int64_t>(best));
    }
    return chosen;
}

double mean(const double* values, std::size_t count) {
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += values[i] / static_cast<double>(count);
    return sum;
}

// The mean of max(0, x) for a normal x.
double expected_improvement(double mean, double deviation) {
    if (!(deviation > 0)) return std::max(mean, 0.0);
    const double z = mean / deviation;
    const double density = std::exp(-z * z / 2) * 0.3989422804014327, below = std::erfc(-z * 0.7071067811865476) / 2;
    return deviation * (z * below + density);
}

}  // namespace

Forecast::Forecast(const std::vector<Text>& texts)
    : size_(texts.size()), likeness_(mbrace::likeness(texts)), has_entered_(size_), unexplained_(size_),
      unlevelled_(size_, 1.0) {
    for (std::size_t i = 0; i < size_; ++i) unexplained_[i] = likeness_[i * size_ + i];
}

std::vector<std::int64_t> Forecast::start(std::size_t count) {
    std::vector<std::int64_t> chosen = starters(likeness_, size_, count, NOISE);
    std::sort(chosen.begin(), chosen.end());
    for (const std::int64_t row : chosen) enter(static_cast<std::size_t>(row));
    return chosen;
}

std::vector<std::int64_t> Forecast::next(const double* means, double rival, double least, std::size_t most) {
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

void Forecast::enter(std::size_t row) {
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

}  // namespace mbrace
