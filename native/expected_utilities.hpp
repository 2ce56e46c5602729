// Expected utilities: each hypothesis' mean utility over the pseudo-references, weighted, without rounding errors.
#pragma once

#include <cstddef>

namespace mbrace {

// For each row of (hypotheses, distinct), the sum of weight times utility over the sum of the weights.
// Sums are exact and rounded once, the division comes last: the result is the same on every machine and in every order
// of the columns, and hypotheses whose weighted utilities add up to the same number have equal expected utilities.
void expected_utilities(const float* utilities, std::size_t hypotheses, std::size_t distinct, const double* weights,
                        double* means);
void expected_utilities(const double* utilities, std::size_t hypotheses, std::size_t distinct, const double* weights,
                        double* means);

// The same for one row, divided without rounding first: rows whose weights differ, and whose exact means are equal, get equal
// ones. Slower.
double exact_mean(const float* utilities, std::size_t distinct, const double* weights);
double exact_mean(const double* utilities, std::size_t distinct, const double* weights);

}  // namespace mbrace
