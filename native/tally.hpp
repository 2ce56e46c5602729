// The race of one sentence in numbers: which hypotheses are alive (H_t), how often each pseudo-reference was drawn (R_t),
// and the utilities known so far: floats or, from the first table of doubles on, doubles.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "decide.hpp"
#include "distinct.hpp"
#include "expected_utilities.hpp"
#include "pool.hpp"
#include "resamples.hpp"

namespace mbrace {

class Tally {
  public:
    using Utilities = std::variant<UnsetVector<float>, UnsetVector<double>>;

    Tally() = default;
    explicit Tally(std::size_t hypotheses) : hypotheses_(hypotheses), alive_(hypotheses) {
        std::iota(alive_.begin(), alive_.end(), 0);
    }

    // Makes room for hypotheses and pseudo-references that are to come.
    void expect_strings(std::size_t count) { strings_.expect(count); }

    // Adds a hypothesis before the race; false if an equal one is there. Its buffer is read again later.
    bool add_hypothesis(const Text& text) {
        const std::size_t string = strings_.add(text);
        if (string < column_of_.size()) return false;
        column_of_.push_back(NO_COLUMN);
        alive_.push_back(static_cast<std::int64_t>(hypotheses_++));
        return true;
    }

    std::size_t hypotheses() const { return hypotheses_; }     // that ever raced
    std::size_t strings() const { return column_of_.size(); }  // distinct ones, hypotheses and pseudo-references together

    const std::vector<std::int64_t>& alive() const { return alive_; }    // indexes of hypotheses
    const std::vector<std::int64_t>& counts() const { return counts_; }  // of each distinct pseudo-reference
    std::size_t draws() const { return draws_; }
    std::size_t columns() const { return columns_; }           // distinct pseudo-references that were scored
    const Utilities& utilities() const { return utilities_; }  // (alive, columns)

    // Adds one draw. Returns whether this pseudo-reference is drawn for the first time.
    bool draw(const Text& text) {
        const std::size_t string = strings_.add(text);
        if (string == column_of_.size()) column_of_.push_back(NO_COLUMN);
        means_.clear();
        ++draws_;
        if (column_of_[string] != NO_COLUMN) {
            ++counts_[column_of_[string]];
            return false;
        }
        column_of_[string] = static_cast<std::uint32_t>(counts_.size());
        counts_.push_back(1);
        return true;
    }

    // Lets new hypotheses into the race, with their utilities against every pseudo-reference so far, (rows, columns()).
    template <class Number>
    void enter(const Number* table, std::size_t rows) {
        widen<Number>();
        means_.clear();
        with_utilities([&](auto& known) {
            std::remove_reference_t<decltype(known)> joined((alive_.size() + rows) * columns_);
            copy(table, rows * columns_, std::copy_n(known.data(), alive_.size() * columns_, joined.data()));
            known = std::move(joined);
        });
        for (std::size_t row = 0; row < rows; ++row) alive_.push_back(static_cast<std::int64_t>(hypotheses_++));
    }

    // From now on, leaves one draw of this column, which is the hypothesis of this alive row itself, out of the hypothesis'
    // expected utility. (It is replaced by the mean of the others, so that all hypotheses have the same number of draws.)
    void leave_out(std::size_t row, std::size_t column) {
        means_.clear();
        with_utilities([&](auto& known) { own_.push_back({alive_[row], column, double{known[row * columns_ + column]}}); });
    }

    // Adds the utilities of the alive hypotheses against new pseudo-references, (alive, columns).
    template <class Number>
    void add(const Number* table, std::size_t columns) {
        widen<Number>();
        means_.clear();
        with_utilities([&](auto& known) {
            std::remove_reference_t<decltype(known)> joined((columns_ + columns) * alive_.size());
            auto* out = joined.data();
            for (std::size_t row = 0; row < alive_.size(); ++row) {
                out = std::copy_n(known.data() + row * columns_, columns_, out);
                out = copy(table + row * columns, columns, out);
            }
            known = std::move(joined);
        });
        columns_ += columns;
    }

    // The index of the first value that is not finite; `size` if all are. (std::isfinite would not vectorise.)
    template <class Number>
    static std::size_t first_not_finite(const Number* table, std::size_t size) {
        std::uint32_t found = 0;
        for (std::size_t i = 0; i < size; ++i) found |= is_finite(table[i]) ? 0 : 1;
        return found ? std::find_if_not(table, table + size, is_finite<Number>) - table : size;
    }

    // Drops the other hypotheses. `rows`: growing indexes into alive().
    void keep(const std::vector<std::int64_t>& rows) {
        if (rows.size() == alive_.size()) return;
        means_.clear();
        with_utilities([&](auto& known) {
            for (std::size_t row = 0; row < rows.size(); ++row) {
                alive_[row] = alive_[rows[row]];
                std::copy_n(known.data() + rows[row] * columns_, columns_, known.data() + row * columns_);
            }
        });
        alive_.resize(rows.size());
    }

    // Updates the cells of draws that are left out, which depend on the other draws, before `utilities` is read. `weights`:
    // the weight of each pseudo-reference, all its copies together; null: its count.
    void fill_left_out(const double* weights) {
        with_utilities([&](auto& known) { fill_left_out(known.data(), weights); });
    }

    // Expected utilities of those alive. Sums are exact, so that the order of the draws changes no bit.
    std::vector<double> expected(const double* weights) {
        return std::visit([&](auto& known) { return expected(known.data(), weights); }, utilities_);
    }

    // One step of a race (see `decide`): drops the pruned hypotheses and returns the expected utilities of the survivors.
    // Where the expected regret of answering now is at most `max_regret` of the spread, only the `nbest` survive.
    std::vector<double> decide(const Resamples* resamples, const double* weights, std::size_t nbest, double max_losing_wins,
                               double max_regret = 0) {
        return std::visit(
            [&](auto& known) { return decide(known.data(), resamples, weights, nbest, max_losing_wins, max_regret); },
            utilities_);
    }

    // The spread between hypotheses: the standard deviation of the expected utilities of all that raced. Those of alive
    // hypotheses are `means`; those of pruned ones are from when they were pruned.
    double standard_deviation(const std::vector<double>& means) const {
        const double count = static_cast<double>(means.size() + pruned_means_.size());
        double sum = 0, squares = 0, largest = 0;
        for (const std::vector<double>* some : {&pruned_means_, &means}) {
            for (const double mean : *some) largest = std::max(largest, std::abs(mean));
        }
        int exponent;  // numbers near 1 have squares of any size
        std::frexp(largest, &exponent);
        for (const std::vector<double>* some : {&pruned_means_, &means}) {
            for (const double mean : *some) sum += std::ldexp(mean, -exponent);
        }
        for (const std::vector<double>* some : {&pruned_means_, &means}) {
            for (const double mean : *some) {
                const double difference = std::ldexp(mean, -exponent) - sum / count;
                squares += difference * difference;
            }
        }
        return std::ldexp(std::sqrt(squares / count), exponent);
    }

  private:
    template <class Number>
    std::vector<double> decide(Number* utilities, const Resamples* resamples, const double* weights, std::size_t nbest,
                               double max_losing_wins, double max_regret) {
        std::vector<double> means = expected(utilities, weights);
        const std::vector<std::int64_t> ones(weights ? columns_ : 0, 1);  // with weights, a repeated draw counts once
        const std::vector<std::int64_t> survivors =
            mbrace::decide(resamples, utilities, alive_.size(), columns_, weights ? ones.data() : counts_.data(), weights,
                           nbest, max_losing_wins, means.data());
        if (resamples && max_regret > 0) note_pruned(means, survivors);
        keep_means(means, survivors);
        if (resamples && max_regret > 0 && alive_.size() > nbest) {
            const double spread = standard_deviation(means);
            const std::vector<std::int64_t> leaders = best_rows(means, nbest);
            const double regret =
                resamples->regret(utilities, alive_.size(), columns_, weights ? ones.data() : counts_.data(), weights,
                                  leaders, max_regret * spread);
            if (regret <= max_regret * spread) keep_means(means, leaders);
        }
        return means;
    }

    template <class Number>
    std::vector<double> expected(Number* utilities, const double* weights) {
        if (!weights && own_.empty() && !means_.empty()) return means_;
        const std::vector<std::pair<std::size_t, double>> without_own = fill_left_out(utilities, weights);
        std::vector<double> means(alive_.size());
        const std::vector<double> shares = shares_of(weights);
        expected_utilities(utilities, alive_.size(), columns_, shares.data(), means.data());
        for (const auto& [row, mean] : without_own) means[row] = mean;  // a filled cell is rounded, this is not
        if (!weights) means_ = means;
        return means;
    }

    std::vector<double> shares_of(const double* weights) const {
        if (weights) return {weights, weights + columns_};
        return {counts_.begin(), counts_.begin() + static_cast<std::ptrdiff_t>(columns_)};
    }

    // Returns the rows with a draw that is left out, and the expected utility of each without it. With weights, all copies
    // of a string share its weight, so nothing changes as long as one copy is not left out.
    template <class Number>
    std::vector<std::pair<std::size_t, double>> fill_left_out(Number* utilities, const double* weights) {
        constexpr double PART = 0x1p-32;  // of each utility is added up, so that no sum is too large for a double
        std::vector<std::pair<std::size_t, double>> means;
        if (own_.empty()) return means;
        std::vector<double> shares = shares_of(weights);
        for (const Own& own : own_) {
            const auto found = std::lower_bound(alive_.begin(), alive_.end(), own.hypothesis);
            if (found == alive_.end() || *found != own.hypothesis) continue;
            const auto index = static_cast<std::size_t>(found - alive_.begin());
            Number* row = utilities + index * columns_;
            row[own.column] = static_cast<Number>(own.utility);
            const auto copies = static_cast<double>(counts_[own.column] - 1);  // that are not left out
            if (weights && copies > 0) continue;
            const double share = shares[own.column];
            shares[own.column] = weights ? 0 : copies;
            if (std::any_of(shares.begin(), shares.end(), [](double other) { return other > 0; })) {
                double mean;
                expected_utilities(row, 1, columns_, shares.data(), &mean);
                row[own.column] = static_cast<Number>((copies * (own.utility * PART) + mean * PART) / (copies + 1) / PART);
                means.emplace_back(index, mean);
            }
            shares[own.column] = share;
        }
        return means;
    }

    template <class Number>
    void widen() {
        if constexpr (std::is_same_v<Number, double>) {
            if (const auto* floats = std::get_if<UnsetVector<float>>(&utilities_)) {
                UnsetVector<double> doubles(floats->size());
                std::copy(floats->begin(), floats->end(), doubles.begin());
                utilities_ = std::move(doubles);
            }
        }
    }

    template <class Function>
    void with_utilities(const Function& function) {
        std::visit(function, utilities_);
    }

    // Floats become doubles; never the other way round (see `widen`).
    template <class From, class To>
    static To* copy(const From* from, std::size_t count, To* to) {
        if constexpr (std::is_same_v<From, To>) {
            return std::copy_n(from, count, to);  // a block of memory
        } else {
            return std::transform(from, from + count, to, [](From value) { return static_cast<To>(value); });
        }
    }

    static constexpr std::uint32_t NO_COLUMN = ~std::uint32_t{0};

    struct Own {
        std::int64_t hypothesis;
        std::size_t column;
        double utility;  // of the hypothesis against itself
    };

    void note_pruned(const std::vector<double>& means, const std::vector<std::int64_t>& survivors) {
        std::size_t next = 0;
        for (std::size_t row = 0; row < means.size(); ++row) {
            if (next < survivors.size() && static_cast<std::size_t>(survivors[next]) == row) {
                ++next;
            } else {
                pruned_means_.push_back(means[row]);
            }
        }
    }

    void keep_means(std::vector<double>& means, const std::vector<std::int64_t>& rows) {
        for (std::size_t row = 0; row < rows.size(); ++row) means[row] = means[rows[row]];
        means.resize(rows.size());
        keep(rows);
    }

    template <class Number>
    static bool is_finite(Number value) {
        if constexpr (std::is_same_v<Number, double>) {
            return (std::bit_cast<std::uint64_t>(value) & 0x7FF0000000000000u) != 0x7FF0000000000000u;
        } else {
            return (std::bit_cast<std::uint32_t>(value) & 0x7F800000u) != 0x7F800000u;
        }
    }

    Distinct strings_;
    std::vector<std::uint32_t> column_of_;  // [string]
    std::size_t hypotheses_ = 0;
    std::vector<Own> own_;
    std::vector<double> means_;         // expected utilities of those alive, by counts; empty when something has changed
    std::vector<double> pruned_means_;  // kept only where a race may stop by regret
    std::vector<std::int64_t> alive_, counts_;
    std::size_t draws_ = 0, columns_ = 0;
    Utilities utilities_;
};

}  // namespace mbrace
