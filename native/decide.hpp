// One step of a race: which hypotheses survive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "resamples.hpp"

namespace mbrace {

// The `count` best rows by mean (the first of equal ones), ascending.
std::vector<std::int64_t> best_rows(const std::vector<double>& means, std::size_t count);

// One step of a race: returns the survivors, ascending. They are the `nbest` rows by expected utility, `means` (the first
// of equal ones), and those that win more than `max_losing_wins` resamples against the last of these; all rows if there
// are no resamples. `weights`: the weight of each pseudo-reference, all its copies together; null: its count.
template <class Number>  // float or double
std::vector<std::int64_t> decide(const Resamples* resamples, const Number* utilities, std::size_t hypotheses,
                                 std::size_t distinct, const std::int64_t* counts, const double* weights, std::size_t nbest,
                                 double max_losing_wins, const double* means);

}  // namespace mbrace
