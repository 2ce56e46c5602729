// The race of one sentence in numbers: which hypotheses are alive (H_t), how often each pseudo-reference was drawn (R_t),
// and the utilities known so far: floats or, from the first table of doubles on, doubles.
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "distinct.hpp"
#include "pool.hpp"
#include "resamples.hpp"

namespace mbrace {

class Tally {
  public:
    Tally() = default;
    explicit Tally(std::size_t hypotheses) : hypotheses_(hypotheses), alive_(hypotheses) {
        std::iota(alive_.begin(), alive_.end(), 0);
    }

    // Makes room for hypotheses and pseudo-references that are to come.
    void expect_strings(std::size_t count) { strings_.expect(count); }

    // Adds a hypothesis before the race; false if an equal one is there. Its buffer is read again later.
    bool add_hypothesis(const Text& text);

    std::size_t hypotheses() const { return hypotheses_; }     // that ever raced
    std::size_t strings() const { return column_of_.size(); }  // distinct ones, hypotheses and pseudo-references together

    const std::vector<std::int64_t>& alive() const { return alive_; }    // indexes of hypotheses
    const std::vector<std::int64_t>& counts() const { return counts_; }  // of each distinct pseudo-reference
    std::size_t draws() const { return draws_; }
    std::size_t columns() const { return columns_; }  // distinct pseudo-references that were scored

    // Adds one draw. Returns whether this pseudo-reference is drawn for the first time.
    bool draw(const Text& text);

    // Lets new hypotheses into the race, with their utilities against every pseudo-reference so far, (rows, columns()).
    template <class Number>
    void enter(const Number* table, std::size_t rows);

    // From now on, leaves one draw of this column, which is the hypothesis of this alive row itself, out of the hypothesis'
    // expected utility. (It is replaced by the mean of the others, so that all hypotheses have the same number of draws.)
    void leave_out(std::size_t row, std::size_t column);

    // Adds the utilities of the alive hypotheses against new pseudo-references, (alive, columns).
    template <class Number>
    void add(const Number* table, std::size_t columns);

    // The index of the first value that is not finite; `size` if all are. (std::isfinite would not vectorise.)
    template <class Number>
    static std::size_t first_not_finite(const Number* table, std::size_t size);

    // Drops the other hypotheses, whose last expected utilities are remembered for `spread`. `rows`: growing indexes into
    // alive().
    void keep(const std::vector<std::int64_t>& rows);

    // Updates the cells of draws that are left out, which depend on the other draws, before `utilities` is read. `weights`:
    // the weight of each pseudo-reference, all its copies together; null: its count.
    void fill_left_out(const double* weights);

    // Expected utilities of those alive. Sums are exact, so that the order of the draws changes no bit.
    std::vector<double> expected(const double* weights);

    // One step of a race (see `decide`): drops the pruned hypotheses and returns the expected utilities of the survivors.
    // Where the expected regret of answering now is at most `max_regret` of the spread, only the `nbest` survive.
    std::vector<double> decide(const Resamples* resamples, const double* weights, std::size_t nbest, double max_losing_wins,
                               double max_regret = 0);

    // The spread between hypotheses: the standard deviation of the expected utilities of all that raced. Those of alive
    // hypotheses are the latest computed; those of pruned ones are from when they were pruned.
    double spread() const;

    // Calls `function` with the utilities, (alive, columns).
    template <class Function>
    decltype(auto) with_utilities(const Function& function) {
        return wide_ ? function(doubles_) : function(floats_);
    }

  private:
    template <class Number>
    std::vector<double> decide(Number* utilities, const Resamples* resamples, const double* weights, std::size_t nbest,
                               double max_losing_wins, double max_regret);
    template <class Number>
    std::vector<double> expected(Number* utilities, const double* weights);
    std::vector<double> shares_of(const double* weights) const;
    template <class Number>
    std::vector<std::pair<std::size_t, double>> fill_left_out(Number* utilities, const double* weights);
    template <class Number>
    void widen();
    void note_pruned(const std::vector<std::int64_t>& survivors);

    static constexpr std::uint32_t NO_COLUMN = ~std::uint32_t{0};

    struct Own {
        std::int64_t hypothesis;
        std::size_t column;
        double utility;  // of the hypothesis against itself
    };

    Distinct strings_;
    std::vector<std::uint32_t> column_of_;  // [string]
    std::size_t hypotheses_ = 0;
    std::vector<Own> own_;
    std::vector<double> means_;   // expected utilities of those alive, by counts; empty when something has changed
    std::vector<double> latest_;  // the same as they were last computed, perhaps with weights
    std::vector<double> pruned_means_;
    std::vector<std::int64_t> alive_, counts_;
    std::size_t draws_ = 0, columns_ = 0;
    bool wide_ = false;  // whether the utilities are doubles
    UnsetVector<float> floats_;
    UnsetVector<double> doubles_;
};

}  // namespace mbrace
