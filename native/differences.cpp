// How differences are measured and rounded.
#include "differences.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <type_traits>

#include "clones.hpp"
#include "resample_blocks.hpp"

namespace mbrace {
namespace {

constexpr int FINE_BITS = 52;                               // of a total on the fine grid: a double has 53
constexpr double MAX_COARSE_DIFFERENCE = 32767.0;           // what 16 bits hold, in steps of the coarse grid
constexpr double MAX_COARSE_TOTAL = 2147483647.0;           // what 32 bits hold
constexpr double MIN_FLOAT = 0x1p-80, MAX_FLOAT = 0x1p120;  // differences between these can be rounded in float
constexpr int MAX_DOUBLE_EXPONENT = 900;  // utilities of 2^900 or above, or below 2^-900, are brought near 1

// One difference, in double.
template <class Number>
double difference(const Number* own, const Number* rival, const double* weights, std::size_t c) {
    const double plain = static_cast<double>(own[c]) - static_cast<double>(rival[c]);
    return weights ? plain * weights[c] : plain;
}

// `range`: the lowest and the highest of a hypothesis' differences from the rival. `round_row`: all of them, in steps of a
// grid that has `scale` steps per unit. Each with weights and without. First for floats, in loops that vectorise.
MBRACE_CLONES
void range(const float* own, const float* rival, const double* weights, std::size_t distinct, double* lowest,
           double* highest) {
    double low = (static_cast<double>(own[0]) - static_cast<double>(rival[0])) * weights[0], high = low;
    for (std::size_t c = 1; c < distinct; ++c) {
        const double value = (static_cast<double>(own[c]) - static_cast<double>(rival[c])) * weights[c];
        low = value < low ? value : low;
        high = value > high ? value : high;
    }
    *lowest = low;
    *highest = high;
}

MBRACE_CLONES
void range(const float* own, const float* rival, std::size_t distinct, double* lowest, double* highest) {
    float low = own[0] - rival[0], high = low;
    for (std::size_t c = 1; c < distinct; ++c) {
        const float value = own[c] - rival[c];
        low = value < low ? value : low;
        high = value > high ? value : high;
    }
    *lowest = low;
    *highest = high;
}

MBRACE_CLONES
void round_row(const float* own, const float* rival, const double* weights, std::size_t distinct, double scale,
               std::int16_t* row) {
    for (std::size_t c = 0; c < distinct; ++c) {
        const double value = (static_cast<double>(own[c]) - static_cast<double>(rival[c])) * weights[c];
        row[c] = static_cast<std::int16_t>(static_cast<std::int32_t>(std::nearbyint(value * scale)));
    }
}

MBRACE_CLONES
void round_row(const float* own, const float* rival, std::size_t distinct, float scale, std::int16_t* row) {
    for (std::size_t c = 0; c < distinct; ++c) {
        row[c] = static_cast<std::int16_t>(static_cast<std::int32_t>(std::nearbyint((own[c] - rival[c]) * scale)));
    }
}

// Then for doubles, which come from utilities that take far longer than this.
void range(const double* own, const double* rival, const double* weights, std::size_t distinct, double* lowest,
           double* highest) {
    double low = difference(own, rival, weights, 0), high = low;
    for (std::size_t c = 1; c < distinct; ++c) {
        const double value = difference(own, rival, weights, c);
        low = std::min(low, value);
        high = std::max(high, value);
    }
    *lowest = low;
    *highest = high;
}

void range(const double* own, const double* rival, std::size_t distinct, double* lowest, double* highest) {
    range(own, rival, nullptr, distinct, lowest, highest);
}

void round_row(const double* own, const double* rival, const double* weights, std::size_t distinct, double scale,
               std::int16_t* row) {
    for (std::size_t c = 0; c < distinct; ++c) {
        const double value = std::nearbyint(difference(own, rival, weights, c) * scale);
        row[c] = static_cast<std::int16_t>(static_cast<std::int32_t>(value));
    }
}

void round_row(const double* own, const double* rival, std::size_t distinct, double scale, std::int16_t* row) {
    round_row(own, rival, nullptr, distinct, scale, row);
}

}  // namespace

template <class Number>
Differences<Number>::Differences(const Number* utilities, std::size_t hypotheses, std::size_t distinct,
                                 const std::int64_t* counts, std::size_t draws, const double* weights, std::size_t rival,
                                 bool one_grid)
    : utilities_(utilities), rival_(utilities + rival * distinct), counts_(counts), weights_(weights), distinct_(distinct),
      draws_(draws), pairs_((draws + 1) / 2), coarse_(hypotheses * pairs_), lowest_(hypotheses), highest_(hypotheses) {
    double largest = measure(hypotheses);
    if (largest == 0) return;
    if (std::is_same_v<Number, float> && !weights && !(largest < MAX_FLOAT && largest > MIN_FLOAT)) {
        // A difference, or the grid's scale, may be beyond a float: weights of one have all computed in double.
        ones_.assign(distinct, 1.0);
        weights = weights_ = ones_.data();
        largest = measure(hypotheses);
    }
    int exponent;
    std::frexp(largest * static_cast<double>(draws), &exponent);
    fine_scale_ = std::ldexp(1.0, FINE_BITS - exponent);
    const double steps = std::min(MAX_COARSE_DIFFERENCE, MAX_COARSE_TOTAL / static_cast<double>(draws + 2) - 1);
    coarse_scale_ = steps / largest;
    // So that a step of the fine grid is, for all draws together, small compared with a step of a row's coarse grid.
    const double smallest = largest * static_cast<double>(draws) * 0x1p-30;
    std::vector<std::uint32_t> column_of;  // [draw]
    if (distinct < draws) {
        for (std::size_t c = 0; c < distinct; ++c) {
            column_of.insert(column_of.end(), counts[c], static_cast<std::uint32_t>(c));
        }
    }
    std::vector<std::int16_t> row(distinct);
    for (std::size_t h = 0; h < hypotheses; ++h) {
        if (decided(h) && !one_grid) continue;
        auto* out = reinterpret_cast<std::int16_t*>(&coarse_[h * pairs_]);
        std::int16_t* grid = distinct < draws ? row.data() : out;
        const double scale = one_grid ? coarse_scale_ : steps / std::max({-lowest_[h], highest_[h], smallest});
        if (weights) {
            round_row(utilities + h * distinct, rival_, weights, distinct, scale, grid);
        } else {
            round_row(utilities + h * distinct, rival_, distinct, static_cast<Number>(scale), grid);
        }
        for (std::size_t r = 0; r < column_of.size(); ++r) out[r] = row[column_of[r]];
    }
}

template <class Number>
bool Differences<Number>::exact_win(std::size_t h, const std::int16_t* block, std::size_t lane) const {
    const Number* own = utilities_ + h * distinct_;
    double total = 0;
    std::size_t r = 0;
    for (std::size_t c = 0; c < distinct_; ++c) {
        int times = 0;
        for (std::int64_t copy = 0; copy < counts_[c]; ++copy, ++r) times += block[count_index(r, lane)];
        if (times) total += std::nearbyint(difference(own, rival_, weights_, c) * fine_scale_) * times;
    }
    return total >= 0;
}

template <class Number>
double Differences<Number>::measure(std::size_t hypotheses) {
    double largest = 0;
    for (std::size_t h = 0; h < hypotheses; ++h) {
        const Number* row = utilities_ + h * distinct_;
        if (weights_) {
            range(row, rival_, weights_, distinct_, &lowest_[h], &highest_[h]);
        } else {
            range(row, rival_, distinct_, &lowest_[h], &highest_[h]);
        }
        largest = std::max({largest, -lowest_[h], highest_[h]});
    }
    return largest;
}

template <class Number>
Scaled<Number>::Scaled(const Number* utilities, std::size_t size) : data(utilities) {
    if constexpr (std::is_same_v<Number, double>) {
        double largest = 0;
        for (std::size_t i = 0; i < size; ++i) largest = std::max(largest, std::abs(utilities[i]));
        int size_of_largest;
        std::frexp(largest, &size_of_largest);
        if (std::abs(size_of_largest) < MAX_DOUBLE_EXPONENT) return;
        exponent = size_of_largest;
        copy.resize(size);
        std::transform(utilities, utilities + size, copy.begin(), [&](double u) { return std::ldexp(u, -exponent); });
        data = copy.data();
    }
}

template class Differences<float>;
template class Differences<double>;
template struct Scaled<float>;
template struct Scaled<double>;

}  // namespace mbrace
