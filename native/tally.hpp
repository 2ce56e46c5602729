// The race of one sentence in numbers: which hypotheses are alive (H_t), how often each pseudo-reference was drawn (R_t),
// and the utilities known so far.
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

    const std::vector<std::int64_t>& alive() const { return alive_; }    // indexes of hypotheses
    const std::vector<std::int64_t>& counts() const { return counts_; }  // of each distinct pseudo-reference
    std::size_t draws() const { return draws_; }
    std::size_t columns() const { return columns_; }                     // distinct pseudo-references that were scored
    const float* utilities() const { return utilities_.data(); }         // (alive, columns)

    // Adds one draw. Returns whether this pseudo-reference is drawn for the first time.
    bool draw(const Text& text) {
        const std::size_t index = distinct_.add(text);
        ++draws_;
        if (index < counts_.size()) {
            ++counts_[index];
            return false;
        }
        counts_.push_back(1);
        return true;
    }

    // Adds the utilities of the alive hypotheses against new pseudo-references, (alive, columns).
    void add(const float* table, std::size_t columns) {
        Vector<float> joined((columns_ + columns) * alive_.size());
        float* out = joined.data();
        for (std::size_t row = 0; row < alive_.size(); ++row) {
            out = std::copy_n(utilities_.data() + row * columns_, columns_, out);
            out = std::copy_n(table + row * columns, columns, out);
        }
        utilities_ = std::move(joined);
        columns_ += columns;
    }

    // The index of the first value that is not finite; `size` if all are. (std::isfinite would not vectorise.)
    static std::size_t first_not_finite(const float* table, std::size_t size) {
        std::uint32_t found = 0;
        for (std::size_t i = 0; i < size; ++i) found |= is_finite(table[i]) ? 0 : 1;
        return found ? std::find_if_not(table, table + size, is_finite) - table : size;
    }

    // Drops the other hypotheses. `rows`: growing indexes into alive().
    void keep(const std::vector<std::int64_t>& rows) {
        if (rows.size() == alive_.size()) return;
        for (std::size_t row = 0; row < rows.size(); ++row) {
            alive_[row] = alive_[rows[row]];
            std::copy_n(utilities_.data() + rows[row] * columns_, columns_, utilities_.data() + row * columns_);
        }
        alive_.resize(rows.size());
    }

    // One step of a race (see `decide`): drops the pruned hypotheses and returns the expected utilities of the survivors.
    std::vector<double> decide(const Resamples* resamples, const double* weights, std::size_t nbest,
                               double max_losing_wins) {
        std::vector<double> means(alive_.size());
        const std::vector<std::int64_t> ones(weights ? columns_ : 0, 1);  // with weights, a repeated draw counts once
        const std::vector<std::int64_t> survivors =
            mbrace::decide(resamples, utilities_.data(), alive_.size(), columns_, weights ? ones.data() : counts_.data(),
                           weights, nbest, max_losing_wins, means.data());
        for (std::size_t row = 0; row < survivors.size(); ++row) means[row] = means[survivors[row]];
        means.resize(survivors.size());
        keep(survivors);
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
