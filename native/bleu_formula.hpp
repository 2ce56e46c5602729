// BLEU from its counts, as sacreBLEU's compute_bleu.
#pragma once

#include <cmath>
#include <cstddef>

namespace mbrace {

enum class Smoothing { none, floor, add_k, exponential };

// Holds a table of the logarithms of small counts.
class BleuFormula {
  public:
    BleuFormula(Smoothing smoothing, double value, bool effective_order, int order)
        : smoothing_(smoothing), value_(value), effective_order_(effective_order), order_(order) {
        for (std::size_t i = 0; i < KNOWN; ++i) {
            logs_[i] = std::log(static_cast<double>(i));
            smoothed_logs_[i] = std::log(static_cast<double>(i) + value);
        }
    }

    int order() const { return order_; }

    // `correct` and `total` by order.
    template <class Count>
    double score(const Count* correct, const Count* total, double hypothesis_length, double reference_length) const {
        bool any = false;
        for (int n = 0; n < order_; ++n) any |= correct[n] != 0;
        if (!any) return 0;
        double sum = 0;
        int effective = order_, halvings = 0, n = 0;
        for (; n < order_; ++n) {
            const bool adds = smoothing_ == Smoothing::add_k && n > 0;
            if (total[n] == 0 && !(adds && value_ > 0)) break;
            if (effective_order_) effective = n + 1;
            if (adds) {
                if (correct[n] == 0 && value_ == 0) return 0;
                sum += smoothed_log(correct[n]) - smoothed_log(total[n]);
            } else if (correct[n] != 0) {
                sum += log(correct[n]) - log(total[n]);
            } else if (smoothing_ == Smoothing::exponential) {
                sum -= ++halvings * LOG_2 + log(total[n]);
            } else if (smoothing_ == Smoothing::floor && value_ > 0) {
                sum += smoothed_logs_[0] - log(total[n]);
            } else {
                return 0;
            }
        }
        if (n < effective) return 0;  // orders without n-grams, which have a precision of 0
        const double brevity = hypothesis_length < reference_length ? 1 - reference_length / hypothesis_length : 0;
        return 100 * std::exp(brevity + sum / effective);
    }

  private:
    static constexpr std::size_t KNOWN = 1024;
    static constexpr double LOG_2 = 0.69314718055994530942;

    template <class Count>
    double log(Count count) const {
        const auto at = static_cast<std::size_t>(count);
        return at < KNOWN ? logs_[at] : std::log(static_cast<double>(count));
    }
    template <class Count>
    double smoothed_log(Count count) const {
        const auto at = static_cast<std::size_t>(count);
        return at < KNOWN ? smoothed_logs_[at] : std::log(static_cast<double>(count) + value_);
    }

    Smoothing smoothing_;
    double value_;
    bool effective_order_;
    int order_;
    double logs_[KNOWN], smoothed_logs_[KNOWN];
};

}  // namespace mbrace
