#include "tally.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "decide.hpp"
#include "expected_utilities.hpp"

namespace mbrace {
namespace {

// Floats become doubles; never the other way round (see `widen`).
template <class From, class To>
To* copy(const From* from, std::size_t count, To* to) {
    if constexpr (std::is_same_v<From, To>) {
        return std::copy_n(from, count, to);  // a block of memory
    } else {
        return std::transform(from, from + count, to, [](From value) { return static_cast<To>(value); });
    }
}

template <class Number>
bool is_finite(Number value) {
    if constexpr (std::is_same_v<Number, double>) {
        return (std::bit_cast<std::uint64_t>(value) & 0x7FF0000000000000u) != 0x7FF0000000000000u;
    } else {
        return (std::bit_cast<std::uint32_t>(value) & 0x7F800000u) != 0x7F800000u;
    }
}

}  // namespace

bool Tally::add_hypothesis(const Text& text) {
    const std::size_t string = strings_.add(text);
    if (string < column_of_.size()) return false;
    column_of_.push_back(NO_COLUMN);
    alive_.push_back(static_cast<std::int64_t>(hypotheses_++));
    return true;
}

bool Tally::draw(const Text& text) {
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

template <class Number>
std::vector<double> Tally::decide(Number* utilities, const Resamples* resamples, const double* weights, std::size_t nbest,
                                  double max_losing_wins, double max_regret) {
    const std::vector<double> means = expected(utilities, weights);
    const std::vector<std::int64_t> ones(weights ? columns_ : 0, 1);  // with weights, a repeated draw counts once
    const std::vector<std::int64_t> survivors =
        mbrace::decide(resamples, utilities, alive_.size(), columns_, weights ? ones.data() : counts_.data(), weights,
                       nbest, max_losing_wins, means.data());
    keep(survivors);
    if (resamples && max_regret > 0 && alive_.size() > nbest) {
        const double most = max_regret * spread();
        const std::vector<std::int64_t> leaders = best_rows(latest_, nbest);
        const double regret = resamples->regret(utilities, alive_.size(), columns_, weights ? ones.data() : counts_.data(),
                                                weights, leaders, most);
        if (regret <= most) keep(leaders);
    }
    return latest_;
}

template <class Number>
std::vector<double> Tally::expected(Number* utilities, const double* weights) {
    if (!weights && own_.empty() && !means_.empty()) return latest_ = means_;
    const std::vector<std::pair<std::size_t, double>> without_own = fill_left_out(utilities, weights);
    std::vector<double> means(alive_.size());
    const std::vector<double> shares = shares_of(weights);
    if (own_.empty()) {
        expected_utilities(utilities, alive_.size(), columns_, shares.data(), means.data());
    } else {  // weights differ between rows
        for (std::size_t row = 0; row < means.size(); ++row) {
            means[row] = exact_mean(utilities + row * columns_, columns_, shares.data());
        }
    }
    for (const auto& [row, mean] : without_own) means[row] = mean;  // a filled cell is rounded, this is not
    if (!weights) means_ = means;
    return latest_ = means;
}

std::vector<double> Tally::shares_of(const double* weights) const {
    if (weights) return {weights, weights + columns_};
    return {counts_.begin(), counts_.begin() + static_cast<std::ptrdiff_t>(columns_)};
}

// Returns the rows with a draw that is left out, and the expected utility of each without it. With weights, all copies
// of a string share its weight, so nothing changes as long as one copy is not left out.
template <class Number>
std::vector<std::pair<std::size_t, double>> Tally::fill_left_out(Number* utilities, const double* weights) {
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
            const double mean = exact_mean(row, columns_, shares.data());
            row[own.column] = static_cast<Number>((copies * (own.utility * PART) + mean * PART) / (copies + 1) / PART);
            means.emplace_back(index, mean);
        }
        shares[own.column] = share;
    }
    return means;
}

template <class Number>
void Tally::widen() {
    if constexpr (std::is_same_v<Number, double>) {
        if (!wide_) doubles_.assign(floats_.begin(), floats_.end());
        floats_ = {};
        wide_ = true;
    }
}

template <class Number>
std::size_t Tally::first_not_finite(const Number* table, std::size_t size) {
    std::uint32_t found = 0;
    for (std::size_t i = 0; i < size; ++i) found |= is_finite(table[i]) ? 0 : 1;
    return found ? std::find_if_not(table, table + size, is_finite<Number>) - table : size;
}

void Tally::note_pruned(const std::vector<std::int64_t>& survivors) {
    if (latest_.size() != alive_.size()) return;  // nothing was computed since others entered
    std::size_t kept = 0;
    for (std::size_t row = 0; row < latest_.size(); ++row) {
        if (kept < survivors.size() && static_cast<std::size_t>(survivors[kept]) == row) {
            latest_[kept++] = latest_[row];
        } else {
            pruned_means_.push_back(latest_[row]);
        }
    }
    latest_.resize(kept);
}

template <class Number>
void Tally::enter(const Number* table, std::size_t rows) {
    widen<Number>();
    means_.clear();
    with_utilities([&](auto& known) {
        std::remove_reference_t<decltype(known)> joined((alive_.size() + rows) * columns_);
        copy(table, rows * columns_, std::copy_n(known.data(), alive_.size() * columns_, joined.data()));
        known = std::move(joined);
    });
    for (std::size_t row = 0; row < rows; ++row) alive_.push_back(static_cast<std::int64_t>(hypotheses_++));
}

void Tally::leave_out(std::size_t row, std::size_t column) {
    means_.clear();
    with_utilities([&](auto& known) { own_.push_back({alive_[row], column, double{known[row * columns_ + column]}}); });
}

template <class Number>
void Tally::add(const Number* table, std::size_t columns) {
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

void Tally::keep(const std::vector<std::int64_t>& rows) {
    if (rows.size() == alive_.size()) return;
    means_.clear();
    note_pruned(rows);
    with_utilities([&](auto& known) {
        for (std::size_t row = 0; row < rows.size(); ++row) {
            alive_[row] = alive_[rows[row]];
            std::copy_n(known.data() + rows[row] * columns_, columns_, known.data() + row * columns_);
        }
    });
    alive_.resize(rows.size());
}

void Tally::fill_left_out(const double* weights) {
    with_utilities([&](auto& known) { fill_left_out(known.data(), weights); });
}

std::vector<double> Tally::expected(const double* weights) {
    return with_utilities([&](auto& known) { return expected(known.data(), weights); });
}

std::vector<double> Tally::decide(const Resamples* resamples, const double* weights, std::size_t nbest,
                                  double max_losing_wins, double max_regret) {
    return with_utilities(
        [&](auto& known) { return decide(known.data(), resamples, weights, nbest, max_losing_wins, max_regret); });
}

double Tally::spread() const {
    const double count = static_cast<double>(latest_.size() + pruned_means_.size());
    double sum = 0, squares = 0, largest = 0;
    if (count == 0) return 0;
    for (const std::vector<double>* some : {&pruned_means_, &latest_}) {
        for (const double mean : *some) largest = std::max(largest, std::abs(mean));
    }
    int exponent;  // numbers near 1 have squares of any size
    std::frexp(largest, &exponent);
    for (const std::vector<double>* some : {&pruned_means_, &latest_}) {
        for (const double mean : *some) sum += std::ldexp(mean, -exponent);
    }
    for (const std::vector<double>* some : {&pruned_means_, &latest_}) {
        for (const double mean : *some) {
            const double difference = std::ldexp(mean, -exponent) - sum / count;
            squares += difference * difference;
        }
    }
    return std::ldexp(std::sqrt(squares / count), exponent);
}

template void Tally::enter(const float*, std::size_t);
template void Tally::enter(const double*, std::size_t);
template void Tally::add(const float*, std::size_t);
template void Tally::add(const double*, std::size_t);
template std::size_t Tally::first_not_finite(const float*, std::size_t);
template std::size_t Tally::first_not_finite(const double*, std::size_t);

}  // namespace mbrace
