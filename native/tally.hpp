// The race of one sentence in numbers: who is alive (H_t), how often each pseudo-reference was drawn (R_t), and the
// utilities known so far.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>
#include <vector>

#include "distinct.hpp"
#include "pool.hpp"
#include "wins.hpp"

namespace mbrace {

class Tally {
  public:
    explicit Tally(std::size_t hypotheses) : alive_(hypotheses) { std::iota(alive_.begin(), alive_.end(), 0); }

    const std::vector<std::int64_t>& alive() const { return alive_; }    // hypotheses
    const std::vector<std::int64_t>& counts() const { return counts_; }  // of each distinct pseudo-reference
    std::size_t draws() const { return draws_; }
    std::size_t columns() const { return columns_; }                     // distinct pseudo-references that were scored
    const float* utilities() const { return utilities_.data(); }         // (alive, columns)

    // One pseudo-reference more; whether it is new.
    bool draw(const Text& text) {
        const std::size_t which = distinct_.add(text);
        ++draws_;
        if (which < counts_.size()) {
            ++counts_[which];
            return false;
        }
        counts_.push_back(1);
        return true;
    }

    // Utilities of those alive against new pseudo-references, (alive, columns).
    void add(const float* table, std::size_t columns) {
        Vector<float> both((columns_ + columns) * alive_.size());
        float* out = both.data();
        for (std::size_t row = 0; row < alive_.size(); ++row) {
            out = std::copy_n(utilities_.data() + row * columns_, columns_, out);
            out = std::copy_n(table + row * columns, columns, out);
        }
        utilities_ = std::move(both);
        columns_ += columns;
    }

    // The first value of a table that is not finite; its size if all are. (Without std::isfinite: it does not vectorise.)
    static std::size_t not_finite(const float* table, std::size_t size) {
        std::uint32_t found = 0;
        for (std::size_t i = 0; i < size; ++i) found |= is_finite(table[i]) ? 0 : 1;
        return found ? std::find_if_not(table, table + size, is_finite) - table : size;
    }

    // Of those alive, only these stay; in order.
    void keep(const std::vector<std::int64_t>& places) {
        if (places.size() == alive_.size()) return;
        for (std::size_t row = 0; row < places.size(); ++row) {
            alive_[row] = alive_[places[row]];
            std::copy_n(utilities_.data() + places[row] * columns_, columns_, utilities_.data() + row * columns_);
        }
        alive_.resize(places.size());
    }

    // One step of a race, see `decide`; those that do not stay are dropped. Expected utilities of the others.
    std::vector<double> decide(const Resamples* resamples, const double* weights, std::size_t nbest, double enough) {
        std::vector<double> means(alive_.size());
        const std::vector<std::int64_t> once(weights ? columns_ : 0, 1);  // with weights of their own, draws count once
        const std::vector<std::int64_t> stay = mbrace::decide(resamples, utilities_.data(), alive_.size(), columns_,
                                                              weights ? once.data() : counts_.data(), weights, nbest,
                                                              enough, means.data());
        for (std::size_t row = 0; row < stay.size(); ++row) means[row] = means[stay[row]];
        means.resize(stay.size());
        keep(stay);
        return means;
    }

  private:
    static bool is_finite(float value) { return (std::bit_cast<std::uint32_t>(value) & 0x7F800000u) != 0x7F800000u; }

    Distinct distinct_;
    std::vector<std::int64_t> alive_, counts_;
    std::size_t draws_ = 0, columns_ = 0;
    Vector<float> utilities_;
};

}  // namespace mbrace
