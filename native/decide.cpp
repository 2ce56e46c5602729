// The best by expected utility survive a step, and all that win enough resamples against the last of these.
#include "decide.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace mbrace {
namespace {

// The `count` best rows by mean (the first of equal ones), best first.
std::vector<std::int64_t> ranking(const double* means, std::size_t rows, std::size_t count) {
    std::vector<std::int64_t> ranked(rows);
    std::iota(ranked.begin(), ranked.end(), 0);
    count = std::min(count, rows);
    std::partial_sort(ranked.begin(), ranked.begin() + count, ranked.end(),
                      [&](std::int64_t a, std::int64_t b) { return means[a] != means[b] ? means[a] > means[b] : a < b; });
    ranked.resize(count);
    return ranked;
}

}  // namespace

std::vector<std::int64_t> best_rows(const std::vector<double>& means, std::size_t count) {
    std::vector<std::int64_t> rows = ranking(means.data(), means.size(), count);
    std::sort(rows.begin(), rows.end());
    return rows;
}

template <class Number>
std::vector<std::int64_t> decide(const Resamples* resamples, const Number* utilities, std::size_t hypotheses,
                                 std::size_t distinct, const std::int64_t* counts, const double* weights, std::size_t nbest,
                                 double max_losing_wins, const double* means) {
    std::vector<double> draw_weights(weights ? distinct : 0);  // of one copy
    for (std::size_t c = 0; c < draw_weights.size(); ++c) draw_weights[c] = weights[c] / static_cast<double>(counts[c]);
    std::vector<std::int64_t> survivors(hypotheses);
    std::iota(survivors.begin(), survivors.end(), 0);
    if (!resamples || hypotheses <= nbest) return survivors;
    const std::vector<std::int64_t> best = ranking(means, hypotheses, nbest);
    std::vector<std::int64_t> wins(hypotheses);
    resamples->wins(utilities, hypotheses, distinct, counts, weights ? draw_weights.data() : nullptr, best.back(),
                    &max_losing_wins, wins.data());
    for (const std::int64_t h : best) wins[h] = std::numeric_limits<std::int64_t>::max();
    std::erase_if(survivors, [&](std::int64_t h) { return static_cast<double>(wins[h]) <= max_losing_wins; });
    return survivors;
}

template std::vector<std::int64_t> decide(const Resamples*, const float*, std::size_t, std::size_t, const std::int64_t*,
                                          const double*, std::size_t, double, const double*);
template std::vector<std::int64_t> decide(const Resamples*, const double*, std::size_t, std::size_t, const std::int64_t*,
                                          const double*, std::size_t, double, const double*);

}  // namespace mbrace
