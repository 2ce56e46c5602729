// Reference aggregation: many references as one that has the mean of their n-gram counts (DeNero et al., 2009; Vamvas and
// Sennrich, 2024), so that scoring it takes as long as scoring one.
//
// Its matches with a hypothesis are the sum over n-grams of min(count in the hypothesis, mean count m). In items
// (items.hpp): the k-th occurrence of an n-gram weighs m - (k - 1), but from 0 to 1, and the matches are the sum of the
// weights of the items that a hypothesis has. Example: "a" is in three references 1, 2 and 4 times, so m = 7/3. Items
// (a, 1) and (a, 2) weigh 1, (a, 3) weighs 1/3, (a, 4) nothing.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "count.hpp"
#include "index.hpp"
#include "parallel.hpp"
#include "score.hpp"

namespace mbrace {

// References that are scored as one, and their weights.
struct Aggregate {
    const Text* texts;
    const double* weights;
    std::size_t count;
};

// A request: the survivors of one sentence against aggregates.
struct AggregateAsk {
    const Index* index;
    const std::int64_t* survivors;
    std::size_t survivor_count;
    std::vector<Aggregate> aggregates;
    float* scores;  // [survivor_count][aggregates]
};

// An aggregate in the numbering of an index.
class IndexedAggregate {
  public:
    void look_up(const Index& index, const Aggregate& aggregate, TextBuffers& buffers) {
        const Options& options = index.options();
        const int orders = options.orders();
        for (int n = 0; n < orders; ++n) {
            counts_[n].assign(index.numbering().items(n), 0.0);
            lengths_[n] = 0;
        }
        double total = 0;
        for (std::size_t t = 0; t < aggregate.count; ++t) {
            buffers.segment.read(aggregate.texts[t], options.whitespace, options.word_order > 0);
            index.numbering().look_up(buffers.segment, buffers.grams);
            add(buffers.grams, options, aggregate.weights[t]);
            total += aggregate.weights[t];
        }
        for (int n = 0; n < orders; ++n) {
            lengths_[n] /= total;
            spread(n, index.numbering().next(n), total);
        }
        effective_[0] = effective(0, options.char_order);
        effective_[1] = effective(options.char_order, options.word_order);
    }

    // Writes scores[row] = 100 F of the aggregate and each hypothesis of a block.
    void score(const Formula& formula, const Rows& rows, float* scores) const {
        double precision[ROWS] = {}, recall[ROWS] = {};
        for (int n = 0; n < formula.orders; ++n) {
            double matches[ROWS] = {};
            const std::uint32_t known =
                std::min<std::uint32_t>(rows.items[n], static_cast<std::uint32_t>(weights_[n].size()));
            for (std::uint32_t item = 1; item < known; ++item) {
                const double weight = weights_[n][item];
                if (weight == 0) continue;
                for (int word = 0; word < ROWS / 64; ++word) {
                    for (std::uint64_t bits = rows.columns[n][item].words[word]; bits; bits &= bits - 1) {
                        matches[64 * word + std::countr_zero(bits)] += weight;
                    }
                }
            }
            for (int row = 0; row < ROWS; ++row) {
                if (matches[row] == 0) continue;
                const double own = rows.lengths[n * ROWS + row];
                if (formula.eps_smoothing) {
                    precision[row] += matches[row] / (formula.on_precision * lengths_[n] + formula.on_recall * own);
                } else {
                    precision[row] += matches[row] / own;
                    recall[row] += matches[row] / lengths_[n];
                }
            }
        }
        for (int row = 0; row < ROWS; ++row) {
            double score = precision[row] / formula.orders;
            if (!formula.eps_smoothing) {
                const double orders = std::min<double>(rows.effective[row], effective_[0]) +
                                      std::min<double>(rows.effective[ROWS + row], effective_[1]);
                const double bottom = orders * (formula.on_precision * precision[row] + formula.on_recall * recall[row]);
                score = bottom > 0 ? precision[row] * recall[row] / bottom : 0;
            }
            scores[row] = static_cast<float>(100 * score);
        }
    }

  private:
    // Adds the n-grams of one reference, as many times as it counts. Item 0, "not in the index", is added to and not used.
    void add(const Grams& grams, const Options& options, double weight) {
        for (int n = 0; n < options.orders(); ++n) {
            double* counts = counts_[n].data();
            const std::size_t grams_of_order = grams.counts[n];
            lengths_[n] += weight * static_cast<double>(grams_of_order);
            if (n < std::min(WINDOW, options.char_order)) {
                for (std::size_t i = n; i < n + grams_of_order; ++i) counts[grams.ending_at(i)[n]] += weight;
            } else {
                for (std::size_t i = 0; i < grams_of_order; ++i) counts[grams.items[n][i]] += weight;
            }
        }
    }

    // From counts of n-grams, by their first items, to weights of all their items.
    void spread(int n, const Item* next, double total) {
        weights_[n].assign(counts_[n].size(), 0.0);
        for (std::size_t first = 1; first < counts_[n].size(); ++first) {
            double left = counts_[n][first] / total;
            for (Item item = static_cast<Item>(first); item != 0 && left > 0; item = next[item], left -= 1) {
                weights_[n][item] = std::min(left, 1.0);
            }
        }
    }

    double effective(int first, int orders) const {
        int n = 0;
        while (n < orders && lengths_[first + n] > 0) ++n;
        return n;
    }

    std::vector<double> counts_[MAX_ORDERS];   // by first item
    std::vector<double> weights_[MAX_ORDERS];  // by item
    double lengths_[MAX_ORDERS] = {};          // n-grams of an order in an average reference
    double effective_[2] = {};                 // character and word orders with at least one n-gram
};

// Writes the scores of every request. Returns the share of the time that went into reading and numbering references.
inline double score_aggregates(const std::vector<AggregateAsk>& asks, const Formula& formula, int threads) {
    struct Task {
        std::size_t ask, aggregate;
    };
    std::vector<Task> tasks;
    for (std::size_t a = 0; a < asks.size(); ++a) {
        for (std::size_t k = 0; k < asks[a].aggregates.size() && asks[a].survivor_count; ++k) tasks.push_back({a, k});
    }
    Workers workers(threads);
    std::vector<IndexedAggregate> aggregates(std::max(threads, 1));
    parallel(tasks.size(), threads, [&](int worker_index, std::size_t t) {
        Worker& worker = workers[worker_index];
        IndexedAggregate& aggregate = aggregates[worker_index];
        const AggregateAsk& ask = asks[tasks[t].ask];
        const Clock::time_point before = Clock::now();
        aggregate.look_up(*ask.index, ask.aggregates[tasks[t].aggregate], worker.buffers);
        const Clock::time_point looked_up = Clock::now();
        std::vector<float> scores(ask.index->blocks() * ROWS);
        for (std::size_t block = 0; block < ask.index->blocks(); ++block) {
            aggregate.score(formula, ask.index->rows(block), scores.data() + block * ROWS);
        }
        for (std::size_t s = 0; s < ask.survivor_count; ++s) {
            ask.scores[s * ask.aggregates.size() + tasks[t].aggregate] = scores[ask.survivors[s]];
        }
        worker.encoding += looked_up - before;
        worker.counting += Clock::now() - looked_up;
    });
    return finish_call(workers);
}

}  // namespace mbrace
