// How the first hypotheses are chosen: a pivoted Cholesky factorisation of the likeness.
//
// Each choice subtracts what it explains from the whole table. Every second choice needs only the diagonal, so the table is
// updated only once for two choices.
#include "starters.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "clones.hpp"
#include "pool.hpp"

namespace mbrace {
namespace {

constexpr std::size_t LANES = 8;
typedef float Lanes __attribute__((vector_size(LANES * sizeof(float))));

// Subtracts from a row what two choices, with the factors `first` and `second`, explain of it; returns the sum of the
// squares of what is left.
MBRACE_CLONES
double explain(float* row, std::size_t size, const float* first, float own_first, const float* second, float own_second) {
    Lanes sums = {};
    std::size_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        Lanes left, by_first, by_second;
        std::memcpy(&left, row + i, sizeof left);
        std::memcpy(&by_first, first + i, sizeof left);
        std::memcpy(&by_second, second + i, sizeof left);
        left -= own_first * by_first;
        left -= own_second * by_second;
        sums += left * left;
        std::memcpy(row + i, &left, sizeof left);
    }
    double sum = 0;
    for (std::size_t lane = 0; lane < LANES; ++lane) sum += sums[lane];
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

}  // namespace

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

}  // namespace mbrace
